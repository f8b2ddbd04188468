"""What a report is about, read from the artifact store: which artifacts belong together, and what they hold.

The newest evaluation decides: its history names the models and data that its scores are about. Without an
evaluation the newest artifact of each kind is taken.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemotron_app.table import families
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import Input, inputs, tree_text
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.runtime.metrics import read_metrics
from nemotron_shared.stages import RESULTS, TRAINING, products

# What follows the family in an artifact's name -> the pipeline step that makes it, in the order of the pipeline.
STEPS = {made.kind: made.step for made in products()}
RESULTS_SCHEMA = 1
NO_RESULTS: dict[str, Any] = {
    "tasks": {}, "models": {}, "scores": [], "comparisons": [], "overlap": {}, "settings": {}
}  # fmt: skip


@dataclass(frozen=True)
class Collected:
    """Everything that a report shows.

    Attributes:
        artifacts: by the last part of their names (`sft-model`), in the order of the pipeline.
        absent: for each one that is not there, why.
        newer: artifacts that this report is not about, although they are newer.
        metrics: lines of metrics.jsonl, by stage.
        results: results.json; without an evaluation its parts are empty.
        samples: model -> rows, of the task that `sample_task` names.
        lineage: the history as text, one tree for each artifact that nothing was made from.
        pipeline: see `build_report`.
    """

    family: str
    artifacts: dict[str, Artifact]
    absent: dict[str, str]
    newer: list[str]
    metrics: dict[str, list[dict[str, Any]]]
    results: dict[str, Any]
    samples: dict[str, list[dict[str, Any]]]
    lineage: str
    pipeline: Mapping[str, Any]

    @property
    def when(self) -> str:
        """When the newest artifact was made: ISO 8601, UTC."""
        return max(artifact.manifest.created_at for artifact in self.artifacts.values())

    @property
    def config(self) -> str | None:
        """Name of the config, from the pipeline or else from the newest command that named one."""
        commands = [artifact.manifest.producer.command.split() for artifact in self.artifacts.values()]
        named = [_config_in(words) for words in commands]
        return self.pipeline.get("config") or next(filter(None, reversed(named)), None)

    def pipeline_step(self, kind: str) -> dict[str, Any]:
        """What the pipeline said about the step that makes `kind`; empty where it said nothing."""
        for step in self.pipeline.get("steps", []):
            if step["name"].replace("_", " ").removesuffix(" train") == STEPS[kind]:
                return step
        return {}


def collect(store: Store, family: str, pipeline: Mapping[str, Any]) -> Collected:
    """Read everything about the newest evaluation, or the newest of each artifact.

    Raises:
        UserError: nothing is there, or a file is damaged.
    """
    artifacts, absent = choose(store, family)
    if not artifacts:
        raise _nothing(store, family)
    results = NO_RESULTS | (read_results(artifacts[RESULTS]) if RESULTS in artifacts else {})
    return Collected(
        family=family,
        artifacts=artifacts,
        absent=absent,
        newer=_newer(store, family, artifacts),
        metrics={stage.name: _metrics(artifacts.get(stage.result.kind)) for stage in TRAINING},
        results=results,
        samples=read_samples(artifacts[RESULTS], results) if RESULTS in artifacts else {},
        lineage=_lineage(store, artifacts),
        pipeline=pipeline,
    )


def choose(store: Store, family: str) -> tuple[dict[str, Artifact], dict[str, str]]:
    """The artifacts that belong together, and for each missing kind a sentence that says why."""
    names = {kind: f"{family}-{kind}" for kind in STEPS}
    if not store.versions(names[RESULTS]):
        found = {kind: store.resolve(name) for kind, name in names.items() if store.versions(name)}
        return found, {kind: f"No {name} has been made yet." for kind, name in names.items() if kind not in found}
    results = store.resolve(names[RESULTS])
    history: dict[str, Input] = {}
    for entry in _history(store, results):
        history.setdefault(entry.label.partition(":")[0], entry)
    found, absent = {}, {}
    for kind, name in names.items():
        entry = history.get(name)
        if kind == RESULTS:
            found[kind] = results
        elif entry is None:
            absent[kind] = f"No {name} was used for {results.reference}."
        elif entry.artifact is None:
            absent[kind] = f"{entry.label} was used for {results.reference}, but is {entry.problem}."
        else:
            found[kind] = entry.artifact
    return found, absent


def read_results(artifact: Artifact) -> dict[str, Any]:
    """results.json of an evaluation."""
    path = artifact.path / "results.json"
    results = read_json(path)
    if results.get("schema_version") != RESULTS_SCHEMA:
        raise UserError(
            f"{path}: schema_version is {results.get('schema_version')}, this program reads {RESULTS_SCHEMA}",
            "evaluate again, or use the nemotron-shared version that wrote it",
        )
    return results


def read_samples(artifact: Artifact, results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Model -> answers to the questions of the task that `sample_task` names."""
    task = sample_task(results)
    files = {model: artifact.path / "samples" / model / f"{task}.jsonl" for model in results["models"]}
    return {model: _read_lines(file) for model, file in files.items() if file.is_file()}


def sample_task(results: Mapping[str, Any]) -> str | None:
    """The task whose answers are worth reading: generated ones before choices; texts have none."""
    for kind in ("generate", "choice"):
        for name in in_order(results, "task"):
            if results["tasks"][name]["kind"] == kind:
                return name
    return None


def in_order(results: Mapping[str, Any], key: str) -> list[str]:
    """Names of tasks or models in the order of evaluation, which a JSON object does not keep."""
    return list(dict.fromkeys(entry[key] for entry in results["scores"]))


def _nothing(store: Store, family: str) -> UserError:
    made = {name.removesuffix(f"-{kind}") for name in store.names() for kind in STEPS if name.endswith(f"-{kind}")}
    known = families()
    first = "see the models: nemotron --help"
    if family in known:
        flag = " --allow-experimental" if known[family].experimental else ""
        first = f"make something first: nemotron {family} pipeline -c tiny{flag}"
    otherwise = f"it has: {', '.join(sorted(made))}" if made else first
    return UserError(f"nothing of {family} in {store.root}", did_you_mean(family, made, otherwise=otherwise))


def _history(store: Store, artifact: Artifact) -> Iterator[Input]:
    """Everything an artifact derives from, the nearest first."""
    queue, seen = deque([artifact]), {artifact.reference}
    while queue:
        for entry in inputs(store, queue.popleft()):
            if entry.is_source or entry.label in seen:
                continue
            seen.add(entry.label)
            yield entry
            if entry.artifact:
                queue.append(entry.artifact)


def _newer(store: Store, family: str, artifacts: Mapping[str, Artifact]) -> list[str]:
    newest = {kind: store.versions(f"{family}-{kind}")[-1:] for kind in STEPS}
    shown = {kind: artifacts[kind].manifest.version if kind in artifacts else 0 for kind in STEPS}
    return [f"{family}-{kind}:v{found[0]}" for kind, found in newest.items() if found and found[0] > shown[kind]]


def _lineage(store: Store, artifacts: Mapping[str, Artifact]) -> str:
    """The tree of each artifact that no other one here was made from."""
    used = {entry.label for artifact in artifacts.values() for entry in inputs(store, artifact)}
    ends = [artifact for artifact in artifacts.values() if artifact.reference not in used]
    return "\n\n".join(tree_text(store, artifact) for artifact in reversed(ends))


def _metrics(artifact: Artifact | None) -> list[dict[str, Any]]:
    return list(read_metrics(artifact.path / "metrics.jsonl")) if artifact else []


def _read_lines(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UserError(f"{file}:{number}: not valid JSON", "evaluate again with --force") from error
    return rows


def _config_in(words: list[str]) -> str | None:
    """`tiny` of `... -c tiny ...`."""
    for flag, value in pairwise(words):
        if flag in {"-c", "--config"}:
            return Path(value).stem
    return None
