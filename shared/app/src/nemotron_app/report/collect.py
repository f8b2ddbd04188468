"""What a report is about, read from the artifact store: which artifacts belong together, and what they hold.

The newest evaluation decides, or one that is named: its history names the models and data that its scores are about.
One that a fine-tuning ended with decides only where it is named, or where there is no other. Without an evaluation the
newest artifact of each kind is taken.
"""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemotron_app.report.data import DataSet, look_at
from nemotron_app.report.results import NO_RESULTS, read_results, read_samples, results_problem
from nemotron_app.training_log import Log, log_of
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.fine_tunings import fine_tuning_of
from nemotron_shared.artifacts.lineage import Input, inputs, tree_text
from nemotron_shared.artifacts.verified import manifest_problem
from nemotron_shared.errors import NotFound, UserError, did_you_mean
from nemotron_shared.families import families
from nemotron_shared.stages import RESULTS, TRAINING, products

# What follows the family in an artifact's name -> the pipeline step that makes it, in the order of the pipeline.
STEPS = {made.kind: made.step for made in products()}


@dataclass(frozen=True)
class Collected:
    """Everything that a report shows.

    Attributes:
        artifacts: by the last part of their names (`sft-model`), in the order of the pipeline.
        absent: for each one that is not there, why.
        problems: what is damaged, with the remedy, and what could not be told because of it.
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
    problems: list[str]
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


@dataclass
class Chosen:
    """What a report is about: artifacts found, why others are absent, and what is wrong with the store."""

    found: dict[str, Artifact]
    absent: dict[str, str]
    problems: list[str]

    def take(self, store: Store, kind: str, name: str) -> Artifact | None:
        """The newest artifact of a name; of one that is damaged, what is wrong with it."""
        if kind in self.found or kind in self.absent:
            return self.found.get(kind)
        try:
            self.found[kind] = store.resolve(name)
        except NotFound:
            self.absent[kind] = f"No {name} has been made yet."
        except UserError as error:
            self.absent[kind] = f"{name} is damaged: {error.message}."
            self.problems.append(f"{self.absent[kind]} {error.remedy or ''}".strip())
        return self.found.get(kind)

    def use(self, kind: str, entry: Input, user: str) -> None:
        """What the history of an evaluation names, as far as it still is what it was."""
        if entry.artifact is not None:
            self.found[kind] = entry.artifact
            self.problems += [f"{entry.label}, used for {user}, has {entry.problem}."] if entry.problem else []
            return
        self.absent[kind] = f"{entry.label} was used for {user}, but is {entry.problem}."
        if "unreadable" in str(entry.problem):
            remedy = "Restore its manifest.json from a copy, or delete its folder and make it again."
            self.problems.append(f"{self.absent[kind]} {remedy}")


def collect(store: Store, family: str, pipeline: Mapping[str, Any], results: Artifact | None = None) -> Collected:
    """Read everything about an evaluation, the newest where none is given, or the newest of each artifact.

    Raises:
        UserError: nothing is there, or a file is damaged.
    """
    chosen = choose(store, family, results)
    artifacts, problems = chosen.found, chosen.problems
    if not artifacts and problems:
        raise UserError(problems[0])
    if not artifacts:
        made = {name.removesuffix(f"-{kind}") for name in store.names() for kind in STEPS if name.endswith(f"-{kind}")}
        known = families()
        first = "see the models: nemotron --help"
        if family in known:
            flag = " --allow-experimental" if known[family].experimental else ""
            first = f"make something first: nemotron {family} pipeline -c tiny{flag}"
        otherwise = f"it has: {', '.join(sorted(made))}" if made else first
        raise UserError(f"nothing of {family} in {store.root}", did_you_mean(family, made, otherwise=otherwise))
    problems += [f"{changed}." for changed in map(manifest_problem, artifacts.values()) if changed]
    metrics = {}
    for stage in TRAINING:
        model = artifacts.get(stage.result.kind)
        log = log_of(model, store) if model else Log([])
        metrics[stage.name] = log.entries
        problems += [f"{log.problem}."] if log.problem else []
    data = {kind: look_at(artifact, store, family) for kind, artifact in artifacts.items() if kind.endswith("-data")}
    scores = NO_RESULTS | (read_results(artifacts[RESULTS]) if RESULTS in artifacts else {})
    samples = read_samples(artifacts[RESULTS], scores) if RESULTS in artifacts else {}
    changed = results_problem(artifacts[RESULTS]) if RESULTS in artifacts else None
    problems += [f"{changed}."] if changed else []
    # the tree of each artifact that no other one here was made from
    used = {entry.label for artifact in artifacts.values() for entry in inputs(store, artifact)}
    ends = [artifact for artifact in artifacts.values() if artifact.reference not in used]
    lineage = "\n\n".join(tree_text(store, artifact) for artifact in reversed(ends))
    newer = _newer(store, family, artifacts)
    return Collected(
        family, artifacts, chosen.absent, problems, newer, metrics, data, scores, samples, lineage, pipeline
    )


def _newer(store: Store, family: str, artifacts: Mapping[str, Artifact]) -> list[str]:
    """The latest of each kind, where it is later than the one shown; of a kind that is not shown, than all of them."""
    found, last = [], max(map(_published, artifacts.values()))
    for kind in STEPS:
        newest = max(store.versions(f"{family}-{kind}"), default=0)
        with suppress(UserError):  # a damaged one is told of elsewhere
            latest, shown = store.load(f"{family}-{kind}", newest), artifacts.get(kind)
            later = newest > shown.manifest.version if shown else _published(latest) > last
            found += [latest.reference] if later else []
    return found


def _published(artifact: Artifact) -> datetime:
    return datetime.fromisoformat(artifact.manifest.created_at)


def choose(store: Store, family: str, results: Artifact | None = None) -> Chosen:
    """The artifacts that belong together, and for each missing kind a sentence that says why."""
    names = {kind: f"{family}-{kind}" for kind in STEPS}
    chosen = Chosen({} if results is None else {RESULTS: results}, {}, [])
    results = _decisive(store, chosen.take(store, RESULTS, names[RESULTS])) if results is None else results
    if results is None:
        for kind, name in names.items():
            chosen.take(store, kind, name)
        return chosen
    chosen.found[RESULTS] = results
    history = _history(store, results)
    lost = [entry.label for entry in history.values() if entry.artifact is None]
    for kind, name in names.items():
        entry = history.get(name)
        if kind == RESULTS:
            continue
        if entry is None and lost:
            if guess := chosen.take(store, kind, name):
                why = f"{' and '.join(lost)}, which would name the one that was used, cannot be read"
                chosen.problems.append(f"{guess.reference} is shown because it is the newest: {why}.")
        elif entry is None:
            chosen.absent[kind] = f"No {name} was used for {results.reference}."
        else:
            chosen.use(kind, entry, results.reference)
    chosen.found = {kind: chosen.found[kind] for kind in STEPS if kind in chosen.found}
    chosen.problems.reverse()  # the cause before what follows from it
    return chosen


def _decisive(store: Store, newest: Artifact | None) -> Artifact | None:
    """The newest evaluation that no fine-tuning ended with, which is about one stage alone; else the newest."""
    if newest is None or not _is_of_fine_tuning(store, newest):
        return newest
    name, number = newest.manifest.name, newest.manifest.version
    for version in reversed([version for version in store.versions(name) if version < number]):
        with suppress(UserError):  # a damaged one decides nothing
            found = store.load(name, version)
            if not _is_of_fine_tuning(store, found):
                return found
    return newest


def _is_of_fine_tuning(store: Store, results: Artifact) -> bool:
    models = [entry.artifact for entry in inputs(store, results) if entry.role == "model" and entry.artifact]
    return any(fine_tuning_of(model.manifest.producer.command) for model in models)


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
