"""results.json of an evaluation, and the answers beside it, as far as a report relies on them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from nemotron_shared.artifacts import Artifact
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError

SCHEMA = 1
NO_RESULTS: dict[str, Any] = {
    "tasks": {}, "models": {}, "scores": [], "comparisons": [], "overlap": {}, "settings": {}
}  # fmt: skip
AGAIN = "restore the file, or evaluate again with --force"


class _Task(BaseModel):
    kind: str
    metric: str
    n: int
    n_unique: int = 0
    lower_is_better: bool = False


class _Model(BaseModel):
    reference: str | None
    label: str


class _Score(BaseModel):
    model: str
    task: str
    metric: str
    value: float
    ci95: tuple[float, float]
    n: int
    lenient: float = 0.0


class _Comparison(BaseModel):
    task: str
    metric: str
    old: str = Field(alias="from")
    new: str = Field(alias="to")
    difference: float
    ci95: tuple[float, float]
    n: int


class _Example(BaseModel):
    id: Any
    how: str
    place: str = Field(alias="in")
    excerpt: str


class _Sentences(BaseModel):
    found: int
    of: int


class _Overlap(BaseModel):
    found: int
    of: int
    exact: int = 0
    checked_against: list[str]
    unknown: list[str]
    examples: list[_Example]
    sentences: _Sentences | None = None


class _Results(BaseModel):
    """What a report relies on; results.json holds more."""

    tasks: dict[str, _Task]
    models: dict[str, _Model]
    scores: list[_Score]
    comparisons: list[_Comparison]
    overlap: dict[str, _Overlap]
    settings: dict[str, Any]


class _Sample(BaseModel):
    """One model's answer to one question."""

    id: int | str
    question: str
    expected: Any
    output: Any
    score: float


def _check(kind: type[BaseModel], value: object, place: str) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{place}: {key + ': ' if key else ''}{first['msg']}", AGAIN) from error


def read_results(artifact: Artifact) -> dict[str, Any]:
    """results.json of an evaluation.

    Raises:
        UserError: it is of another layout, or damaged.
    """
    path = artifact.path / "results.json"
    results = read_json(path)
    if not isinstance(results, dict):
        raise UserError(f"{path}: not a JSON object", AGAIN)
    if results.get("schema_version") != SCHEMA:
        raise UserError(
            f"{path}: schema_version is {results.get('schema_version')}, this program reads {SCHEMA}",
            "evaluate again, or use the nemotron-shared version that wrote it",
        )
    _check(_Results, results, str(path))
    models = {score["model"] for score in results["scores"]}
    models |= {entry[side] for entry in results["comparisons"] for side in ("from", "to")}
    tasks = {entry["task"] for entry in (*results["scores"], *results["comparisons"])}
    if stray := sorted((models - results["models"].keys()) | (tasks - results["tasks"].keys())):
        raise UserError(f"{path}: scores name '{stray[0]}', which is not among its models and tasks", AGAIN)
    return results


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
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        try:
            row: Any = json.loads(line) if line else None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}:{number}: not valid JSON", AGAIN) from error
        if line:
            _check(_Sample, row, f"{file}:{number}")
            rows.append(row)
    return rows


def sample_task(results: Mapping[str, Any]) -> str | None:
    """The task whose answers are worth reading: generated ones before choices; texts have none."""
    for kind in ("generate", "choice", "code", "instructions"):
        for name in in_order(results, "task"):
            if results["tasks"][name]["kind"] == kind:
                return name
    return None


def in_order(results: Mapping[str, Any], key: str) -> list[str]:
    """Names of tasks or models in the order of evaluation, which a JSON object does not keep."""
    return list(dict.fromkeys(entry[key] for entry in results["scores"]))
