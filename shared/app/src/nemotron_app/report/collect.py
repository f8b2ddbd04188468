"""What a report is about, read from the artifact store: which artifacts belong together, and what they hold.

The newest evaluation decides: its history names the models and data that its scores are about. Without an
evaluation the newest artifact of each kind is taken.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemotron_app.report.data import DataSet, look_at
from nemotron_app.report.reading import read_log
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import Input, inputs, tree_text
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.families import families
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
        metrics: entries of metrics.jsonl, by stage.
        data: what each data artifact holds, by the last part of its name.
        results: results.json; without an evaluation it is empty.
        samples: model -> rows, of the task that `sample_task` names.
        lineage: the history as text, one tree for each artifact that nothing was made from.
        pipeline: see `build_report`.
    """

    family: str
    artifacts: dict[str, Artifact]
    absent: dict[str, str]
    newer: list[str]
    metrics: dict[str, list[dict[str, Any]]]
    data: dict[str, DataSet]
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
        if "config" in self.pipeline:
            return self.pipeline["config"]
        commands = [artifact.manifest.producer.command.split() for artifact in self.artifacts.values()]
        pairs = (pair for words in reversed(commands) for pair in pairwise(words))
        return next((Path(value).stem for flag, value in pairs if flag in {"-c", "--config"}), None)

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
        made = {name.removesuffix(f"-{kind}") for name in store.names() for kind in STEPS if name.endswith(f"-{kind}")}
        known = families()
        first = "see the models: nemotron --help"
        if family in known:
            flag = " --allow-experimental" if known[family].experimental else ""
            first = f"make something first: nemotron {family} pipeline -c tiny{flag}"
        otherwise = f"it has: {', '.join(sorted(made))}" if made else first
        raise UserError(f"nothing of {family} in {store.root}", did_you_mean(family, made, otherwise=otherwise))
    newer = []
    for kind in STEPS:
        shown = artifacts[kind].manifest.version if kind in artifacts else 0
        newest = max(store.versions(f"{family}-{kind}"), default=0)
        newer += [f"{family}-{kind}:v{newest}"] if newest > shown else []
    metrics = {}
    for stage in TRAINING:
        model = artifacts.get(stage.result.kind)
        metrics[stage.name] = read_log(model.path / "metrics.jsonl") if model else []
    data = {kind: look_at(artifact, store, family) for kind, artifact in artifacts.items() if kind.endswith("-data")}
    results = NO_RESULTS | (read_results(artifacts[RESULTS]) if RESULTS in artifacts else {})
    samples = read_samples(artifacts[RESULTS], results) if RESULTS in artifacts else {}
    # the tree of each artifact that no other one here was made from
    used = {entry.label for artifact in artifacts.values() for entry in inputs(store, artifact)}
    ends = [artifact for artifact in artifacts.values() if artifact.reference not in used]
    lineage = "\n\n".join(tree_text(store, artifact) for artifact in reversed(ends))
    return Collected(family, artifacts, absent, newer, metrics, data, results, samples, lineage, pipeline)


def choose(store: Store, family: str) -> tuple[dict[str, Artifact], dict[str, str]]:
    """The artifacts that belong together, and for each missing kind a sentence that says why."""
    names = {kind: f"{family}-{kind}" for kind in STEPS}
    if not store.versions(names[RESULTS]):
        found = {kind: store.resolve(name) for kind, name in names.items() if store.versions(name)}
        return found, {kind: f"No {name} has been made yet." for kind, name in names.items() if kind not in found}
    results = store.resolve(names[RESULTS])
    found, absent = {}, {}
    history = _history(store, results)
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
    samples = {}
    for model in results["models"]:
        file = artifact.path / "samples" / model / f"{sample_task(results)}.jsonl"
        if not file.is_file():
            continue
        samples[model] = []
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            try:
                samples[model] += [json.loads(line)] if line else []
            except json.JSONDecodeError as error:
                raise UserError(f"{file}:{number}: not valid JSON", "evaluate again with --force") from error
    return samples


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


def _history(store: Store, artifact: Artifact) -> dict[str, Input]:
    """Everything an artifact derives from, by name; of each name the nearest."""
    queue, found = deque([artifact]), {}
    seen = {artifact.reference}
    while queue:
        for entry in inputs(store, queue.popleft()):
            if entry.is_source or entry.label in seen:
                continue
            seen.add(entry.label)
            found.setdefault(entry.label.partition(":")[0], entry)
            if entry.artifact:
                queue.append(entry.artifact)
    return found
