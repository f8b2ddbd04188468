"""Which answers to show: the same questions to every model, chosen by a rule that also shows failures.

Questions are grouped by who got them right. The groups take turns, the largest first, each giving its lowest
question number, so every group is seen before any is seen twice, and its size is printed beside it.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

QUESTIONS_SHOWN = 8
MOST_CHARACTERS, MOST_LINES = 300, 5
THINKING = re.compile(r"(?s)\s*(?:<think>)?(.*?)</think>\s*(.*)")

Samples = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Answer:
    """What one model wrote, shortened where it is long; `thinking` is what stands before `</think>`."""

    model: str
    right: bool
    thinking: str
    text: str


@dataclass(frozen=True)
class Question:
    """One question, its expected answer, and how many questions have the same pattern of right and wrong."""

    id: Any
    question: str
    expected: str
    answers: list[Answer]
    same_pattern: int


def choose_questions(samples: Samples, models: Sequence[str]) -> list[Question]:
    """At most `QUESTIONS_SHOWN` questions that all the models answered."""
    rows = {model: {row["id"]: row for row in samples[model]} for model in models}
    if not rows:
        return []
    groups: defaultdict[tuple[bool, ...], list[Any]] = defaultdict(list)
    first = next(iter(rows.values()))
    for key in first:
        if all(key in answered for answered in rows.values()):
            groups[tuple(answered[key]["score"] >= 1 for answered in rows.values())].append(key)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    in_turn = [key for key in chain.from_iterable(zip_longest(*largest_first)) if key is not None]
    chosen = set(in_turn[:QUESTIONS_SHOWN])
    return [
        Question(
            id=key,
            question=str(first[key]["question"]),
            expected=str(first[key]["expected"]),
            answers=[_answer(model, answered[key]) for model, answered in rows.items()],
            same_pattern=len(group),
        )
        for group in largest_first
        for key in group
        if key in chosen
    ]


def _answer(model: str, row: Mapping[str, Any]) -> Answer:
    output = str(row["output"])
    thought = THINKING.fullmatch(output)
    thinking, text = (thought[1].strip(), thought[2].strip()) if thought else ("", output.strip())
    return Answer(model, row["score"] >= 1, _shortened(thinking), _shortened(text))


def _shortened(text: str) -> str:
    shown = "\n".join(text[:MOST_CHARACTERS].split("\n")[:MOST_LINES])
    return text if shown == text else f"{shown} … ({len(text) - len(shown)} more characters)"
