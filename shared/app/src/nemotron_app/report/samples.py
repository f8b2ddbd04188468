"""Choose answers to show: the same questions for every model, by a rule that includes failures.

Questions are grouped by which models answered correctly. The groups take turns, largest first, each contributing its
lowest question number. Every group appears before any repeats, and its size is printed next to it.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from nemotron_app.report.wording import plain_turns

QUESTIONS_SHOWN = 8
MOST_CHARACTERS, MOST_LINES = 300, 5
THINKING = re.compile(r"(?s)\s*(?:<think>)?(.*?)</think>\s*(.*)")

Samples = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Answer:
    """A model's answer, shortened if long; `thinking` is the text before `</think>`.

    A held-out answer has `right` None, and `bits` is the number of bits per byte of the expected answer.
    """

    model: str
    right: bool | None
    thinking: str
    text: str
    bits: float | None = None


@dataclass(frozen=True)
class Question:
    """A question, its expected answer, and how many questions have the same pattern of right and wrong answers; None if
    answers are not judged right or wrong.
    """

    id: Any
    question: str
    expected: str
    answers: list[Answer]
    same_pattern: int | None


def choose_questions(samples: Samples, models: Sequence[str]) -> list[Question]:
    """At most `QUESTIONS_SHOWN` questions that all models answered."""
    rows = {model: {row["id"]: row for row in samples[model]} for model in models}
    if not rows:
        return []
    groups: defaultdict[tuple[bool | None, ...], list[Any]] = defaultdict(list)
    first = next(iter(rows.values()))
    for key in first:
        if all("output" in answered.get(key, {}) for answered in rows.values()):
            groups[tuple(_right(answered[key]) for answered in rows.values())].append(key)
    largest_first = sorted(groups.items(), key=lambda item: len(item[1]), reverse=True)
    in_turn = [key for key in chain.from_iterable(zip_longest(*(keys for _, keys in largest_first))) if key is not None]
    chosen = set(in_turn[:QUESTIONS_SHOWN])
    return [
        Question(
            id=key,
            question=_read(first[key], "question"),
            expected=_read(first[key], "expected"),
            answers=[_answer(model, answered[key]) for model, answered in rows.items()],
            same_pattern=None if None in pattern else len(group),
        )
        for pattern, group in largest_first
        for key in group
        if key in chosen
    ]


def _answer(model: str, row: Mapping[str, Any]) -> Answer:
    output = str(row["output"])
    thought = THINKING.fullmatch(output)
    thinking, text = (thought[1].strip(), thought[2].strip()) if thought else ("", output.strip())
    bits = row["bits"] / max(1, row["bytes"]) if "bits" in row else None
    return Answer(model, _right(row), _shortened(thinking), _shortened(text), bits)


def _right(row: Mapping[str, Any]) -> bool | None:
    return None if "bits" in row else row["score"] >= 1


def _read(row: Mapping[str, Any], name: str) -> str:
    """A text of a row; for held-out answers, without chat template tokens."""
    return _shortened(plain_turns(row[name])) if "bits" in row else str(row[name])


def _shortened(text: str) -> str:
    shown = "\n".join(text[:MOST_CHARACTERS].split("\n")[:MOST_LINES])
    return text if shown == text else f"{shown} … ({len(text) - len(shown)} more characters)"
