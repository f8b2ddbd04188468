"""Schema and readers for results.json of an evaluation and the answers next to it, limited to what reports need."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemotron_app.wording import plain_turns
from nemotron_shared.artifacts import Artifact
from nemotron_shared.system.atomic import read_json, read_regular
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import UserError, printable

SCHEMA = 1
NO_RESULTS: dict[str, Any] = {
    "tasks": {}, "models": {}, "scores": [], "comparisons": [], "overlap": {}, "settings": {}
}  # fmt: skip
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
Count = Annotated[int, Field(ge=0)]
LONGEST_NAME = 200
AGAIN = "restore the file, or evaluate again with --force"


class _Part(BaseModel):
    """Strict validation without conversion, because the values are used as they were read."""

    model_config = ConfigDict(strict=True)


class _Task(_Part):
    kind: str
    metric: str
    n: Count
    n_unique: int = 0
    lower_is_better: bool = False


class _Model(_Part):
    reference: str | None
    label: str


class _Score(_Part):
    model: str
    task: str
    metric: str
    value: float
    ci95: Interval
    n: Count
    lenient: float = 0.0
    cut: float = 0.0
    pass_at_k: dict[str, float] = {}
    figures: dict[str, float] = {}


class _Comparison(_Part):
    task: str
    metric: str
    old: str = Field(alias="from")
    new: str = Field(alias="to")
    difference: float
    ci95: Interval
    n: Count


class _Example(_Part):
    id: Any
    how: str
    place: str = Field(alias="in")
    excerpt: str


class _Sentences(_Part):
    found: Count
    of: Count


class _Overlap(_Part):
    found: Count
    of: Count
    exact: int = 0
    checked_against: list[str]
    unknown: list[str]
    examples: list[_Example]
    sentences: _Sentences | None = None


class _Results(_Part):
    """The part that reports need; results.json holds more."""

    tasks: dict[str, _Task]
    models: dict[str, _Model]
    scores: list[_Score]
    comparisons: list[_Comparison]
    overlap: dict[str, _Overlap]
    settings: dict[str, Any]


class _Sample(_Part):
    """A model's answer to a question."""

    id: int | str
    question: str
    expected: Any
    output: Any
    score: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Scored(_Sample):
    """An answer that a function of the user's scored, with any number."""

    score: Annotated[float, Field(allow_inf_nan=False)]
    scored_by: str


class _Turn(_Part):
    by: Literal["prompt", "model", "environment"]
    tokens: Count
    text: str


class _Episode(_Sample):
    """An episode; environments may give any reward."""

    score: Annotated[float, Field(allow_inf_nan=False)]
    turns: list[_Turn]


class _HeldOut(_Part):
    """A model's prediction of a held-out answer; only the first ones have an `output`."""

    id: int | str
    question: str
    expected: Any
    bits: Annotated[float, Field(ge=0)]
    bytes: Count


def _check(kind: type[BaseModel], value: object, place: str) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{place}: {key + ': ' if key else ''}{first['msg']}", AGAIN) from error


def read_results(artifact: Artifact) -> dict[str, Any]:
    """Read results.json of an evaluation.

    Raises:
        UserError: it has a different layout, or is damaged.
    """
    path = artifact.path / "results.json"
    results = read_json(path)
    if not isinstance(results, dict):
        raise UserError(f"{path}: not a JSON object", AGAIN)
    version = results.get("schema_version")
    if version != SCHEMA or isinstance(version, bool):
        raise UserError(
            f"{path}: schema_version is {version}, this program reads {SCHEMA}",
            "evaluate again, or use the nemotron-shared version that wrote it",
        )
    _check(_Results, results, str(path))
    for name in (*results["models"], *results["tasks"]):
        if name in ("", ".", "..") or {"/", "\0"} & set(name) or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
            raise UserError(f"{path}: '{printable(name[:80])}' cannot be the name of a file", AGAIN)
    models = {score["model"] for score in results["scores"]}
    models |= {entry[side] for entry in results["comparisons"] for side in ("from", "to")}
    tasks = {entry["task"] for entry in (*results["scores"], *results["comparisons"])}
    if stray := sorted((models - results["models"].keys()) | (tasks - results["tasks"].keys())):
        raise UserError(f"{path}: scores name '{stray[0]}', which is not among its models and tasks", AGAIN)
    return results


def results_problem(artifact: Artifact) -> str | None:
    """A warning if the scores are not the published ones, or None."""
    published = artifact.manifest.files.get("results.json")
    if published and file_digest(artifact.path / "results.json") == published.sha256:
        return None
    remedy = f"evaluate again, or see what else is: nemotron artifacts verify {artifact.reference}"
    return f"{artifact.reference}: its results.json is damaged: it is not what was published; {remedy}"


def read_samples(artifact: Artifact, results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Model -> answers to the questions of the task that `sample_task` names."""
    samples = {}
    for model in results["models"]:
        file = artifact.path / "samples" / model / f"{sample_task(results)}.jsonl"
        if file.is_file():
            samples[model] = _rows(file)
    return samples


def _rows(file: Path) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for number, line in enumerate(read_regular(file).split(b"\n"), start=1):
        try:
            row: Any = json.loads(line.decode()) if line else None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}:{number}: not valid JSON", AGAIN) from error
        if line:
            kinds = ((_HeldOut, "bits"), (_Episode, "turns"), (_Scored, "scored_by"))
            kind = next((kind for kind, key in kinds if isinstance(row, dict) and key in row), _Sample)
            _check(kind, row, f"{file}:{number}")
            rows.append(row)
    return rows


def sample_task(results: Mapping[str, Any]) -> str | None:
    """The task whose answers to show: generated answers before choices; tasks that score text have none."""
    for kind in ("generate", "scored", "call", "episode", "choice", "code", "instructions", "answer"):
        for name in in_order(results, "task"):
            if results["tasks"][name]["kind"] == kind:
                return name
    return None


def shown_task(results: Mapping[str, Any]) -> str | None:
    """The task that represents all of them: the one whose answers are shown, or else the first."""
    return sample_task(results) or next(iter(in_order(results, "task")), None)


def in_order(results: Mapping[str, Any], key: str) -> list[str]:
    """Names of tasks or models in evaluation order, which JSON objects do not preserve."""
    return list(dict.fromkeys(entry[key] for entry in results["scores"]))


# Choose answers to show: the same questions for every model, by a rule that includes failures.
#
# Questions are grouped by which models answered correctly. The groups take turns, largest first, each contributing its
# lowest question number. Every group appears before any repeats, and its size is printed next to it.

QUESTIONS_SHOWN = 8
MOST_CHARACTERS, MOST_LINES = 300, 5
THINKING = re.compile(r"(?s)\s*(?:<think>)?(.*?)</think>\s*(.*)")

Samples = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Answer:
    """A model's answer, shortened if long; `thinking` is the text before `</think>`.

    A held-out answer has `right` None, and `bits` is the number of bits per byte of the expected answer. An episode has
    `turns`, with who said them.
    """

    model: str
    right: bool | None
    thinking: str
    text: str
    bits: float | None = None
    turns: Sequence[Mapping[str, Any]] = ()


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
    turns = [one | {"text": _shortened(one["text"])} for one in row.get("turns", ())]
    return Answer(model, _right(row), _shortened(thinking), _shortened(text), bits, turns)


def _right(row: Mapping[str, Any]) -> bool | None:
    return None if "bits" in row else row["score"] >= 1


def _read(row: Mapping[str, Any], name: str) -> str:
    """A text of a row; for held-out answers, without chat template tokens."""
    return _shortened(plain_turns(row[name])) if "bits" in row else str(row[name])


def _shortened(text: str) -> str:
    shown = "\n".join(text[:MOST_CHARACTERS].split("\n")[:MOST_LINES])
    return text if shown == text else f"{shown} … ({len(text) - len(shown)} more characters)"
