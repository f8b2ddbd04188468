"""Collect the artifacts that a report covers, and their contents, from the store.

The newest evaluation, or the one that is named, determines the models and data to show: those in its history. The
evaluation at the end of a fine-tuning is used only if it is named, or the only one. Without an evaluation the
newest artifact of each kind is used.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemotron_app.charts import BarChart, Histogram, bar_chart, histogram, quantile
from nemotron_app.completions import Kept, kept_of
from nemotron_app.inspect.find import LENGTHS, REJECTED, Reason, find_set, read_refused
from nemotron_app.inspect.splits import Split
from nemotron_app.report.results import NO_RESULTS, read_results, read_samples, results_problem
from nemotron_app.training_log import Log, log_of
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.artifact import fine_tuning_of
from nemotron_shared.artifacts.lineage import Input, inputs, tree_text
from nemotron_shared.artifacts.names import few, prefix_of
from nemotron_shared.artifacts.verified import manifest_problem
from nemotron_shared.families import families
from nemotron_shared.stages import RESULTS, STAGES, TRAINING, products
from nemotron_shared.system.errors import NotFound, UserError, did_you_mean

# Artifact kind, as in its name after the family -> the pipeline step that makes it, in pipeline order.
STEPS = {made.kind: made.step for made in products()}
OF_SOME_METHODS = {
    made.kind for stage in STAGES.values() for made in (*stage.other_data, *stage.other_results.values())
}
"""Kinds that only some methods make: they are not reported as missing."""


@dataclass(frozen=True)
class DataSet:
    """`lengths` of the training split, or of all tasks; `refused` rows by reason; `problem` if it cannot be read."""

    lengths: BarChart | None = None
    median: int = 0
    longest: int = 0
    refused: list[Reason] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True)
class Collected:
    """Everything that a report shows.

    Attributes:
        artifacts: by the last part of their names (`sft-model`), in pipeline order.
        absent: the reason for each one that is missing; a fine-tuning lacks no other stage.
        problems: what is damaged, with the remedy, and what is unknown because of it.
        newer: newer artifacts that this report does not cover.
        metrics: entries of metrics.jsonl, by stage.
        completions: of each model that learnt from its own, from the folder of its run, by stage; None where that is
            gone.
        data: contents of each data artifact, by the last part of its name.
        results: results.json; empty without an evaluation.
        samples: model -> rows, of the task that `sample_task` names.
        lineage: the history as text, one tree for each artifact that no other one was made from.
        pipeline: see `build_report`.
    """

    family: str
    artifacts: dict[str, Artifact]
    absent: dict[str, str]
    problems: list[str]
    newer: list[str]
    metrics: dict[str, list[dict[str, Any]]]
    completions: dict[str, Kept | None]
    data: dict[str, DataSet]
    results: dict[str, Any]
    samples: dict[str, list[dict[str, Any]]]
    lineage: str
    pipeline: Mapping[str, Any]

    @property
    def kinds(self) -> list[str]:
        """The kinds of artifacts to show, in pipeline order."""
        return [kind for kind in STEPS if kind in self.artifacts or kind in self.absent]

    @property
    def when(self) -> str:
        """Creation time of the newest artifact: ISO 8601, UTC."""
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
        """What the pipeline recorded about the step that makes `kind`; may be empty."""
        for step in self.pipeline.get("steps", []):
            if step["name"].replace("_", " ").removesuffix(" train") == STEPS[kind]:
                return step
        return {}


@dataclass
class Chosen:
    """The artifacts of a report, why others are absent, problems of the store, and kinds that were never made."""

    found: dict[str, Artifact]
    absent: dict[str, str]
    problems: list[str]
    unmade: list[str] = field(default_factory=list)

    def take(self, store: Store, kind: str, name: str) -> Artifact | None:
        """The newest artifact of a name. Records a problem if it is damaged."""
        if kind in self.found or kind in self.absent:
            return self.found.get(kind)
        try:
            self.found[kind] = store.resolve(name)
        except NotFound:
            self.absent[kind] = f"No {name} has been made yet."
            self.unmade.append(kind)
        except UserError as error:
            self.absent[kind] = f"{name} is damaged: {error.message}."
            self.problems.append(f"{self.absent[kind]} {error.remedy or ''}".strip())
        return self.found.get(kind)

    def use(self, kind: str, entry: Input, user: str) -> None:
        """Use an input from the history of an evaluation, provided that it is unchanged."""
        if entry.artifact is not None:
            self.found[kind] = entry.artifact
            self.problems += [f"{entry.label}, used for {user}, has {entry.problem}."] if entry.problem else []
            return
        self.absent[kind] = f"{entry.label} was used for {user}, but is {entry.problem}."
        if "unreadable" in str(entry.problem):
            remedy = "Restore its manifest.json from a copy, or delete its folder and make it again."
            self.problems.append(f"{self.absent[kind]} {remedy}")


def collect(store: Store, family: str, pipeline: Mapping[str, Any], results: Artifact | None = None) -> Collected:
    """Read everything about an evaluation (default: the newest), or else the newest artifact of each kind.

    Raises:
        UserError: nothing found, or a file is damaged.
    """
    chosen = choose(store, family, results)
    artifacts, problems = chosen.found, chosen.problems
    absent = {kind: why for kind, why in chosen.absent.items() if kind not in OF_SOME_METHODS}
    if not artifacts and problems:
        raise UserError(problems[0])
    if not artifacts:
        made = {prefix for name in store.names() if (prefix := prefix_of(name))}
        known = families()
        first = "see the models: nemotron --help"
        if family in known:
            flag = " --allow-experimental" if known[family].experimental else ""
            first = f"make something first: nemotron {family} pipeline -c tiny{flag}"
        others = [f"nemotron report --family {name}" for name in sorted(made)]
        otherwise = f"there is another: {few(others)}" if made else first
        raise UserError(f"nothing of {family} in {store.root}", did_you_mean(family, made, otherwise=otherwise))
    problems += [f"{changed}." for changed in map(manifest_problem, artifacts.values()) if changed]
    metrics, completions = {}, dict[str, Kept | None]()
    for made in (one for stage in TRAINING for one in (stage.result, *stage.other_results.values())):
        model = artifacts.get(made.kind)
        log = log_of(model, store) if model else Log([])
        metrics[made.kind.removesuffix("-model")] = log.entries
        problems += [f"{log.problem}."] if log.problem else []
        if model and any("reward" in entry for entry in log.entries):
            kept = completions[made.kind.removesuffix("-model")] = kept_of(model, store)
            problems += [f"{kept.problem}."] if kept and kept.problem else []
    data = {
        kind: read_data_set(artifact, store, family) for kind, artifact in artifacts.items() if kind.endswith("-data")
    }
    scores = NO_RESULTS | (read_results(artifacts[RESULTS]) if RESULTS in artifacts else {})
    samples = read_samples(artifacts[RESULTS], scores) if RESULTS in artifacts else {}
    changed = results_problem(artifacts[RESULTS]) if RESULTS in artifacts else None
    problems += [f"{changed}."] if changed else []
    # one tree for each artifact that no other one here was made from
    used = {entry.label for artifact in artifacts.values() for entry in inputs(store, artifact)}
    ends = [artifact for artifact in artifacts.values() if artifact.reference not in used]
    lineage = "\n\n".join(tree_text(store, artifact) for artifact in reversed(ends))
    newer = _newer(store, family, artifacts)
    return Collected(
        family, artifacts, absent, problems, newer, metrics, completions, data, scores, samples, lineage, pipeline
    )


def _newer(store: Store, family: str, artifacts: Mapping[str, Artifact]) -> list[str]:
    """The latest artifact of each kind that is newer than the one shown; for kinds not shown, newer than all shown."""
    found, last = [], max(map(_published, artifacts.values()))
    for kind in STEPS:
        newest = max(store.versions(f"{family}-{kind}"), default=0)
        with suppress(UserError):  # damaged artifacts are reported elsewhere
            latest, shown = store.load(f"{family}-{kind}", newest), artifacts.get(kind)
            later = newest > shown.manifest.version if shown else _published(latest) > last
            found += [latest.reference] if later else []
    return found


def _published(artifact: Artifact) -> datetime:
    return datetime.fromisoformat(artifact.manifest.created_at)


def choose(store: Store, family: str, results: Artifact | None = None) -> Chosen:
    """The artifacts that belong together, and for each missing kind a sentence that explains why."""
    names = {kind: f"{family}-{kind}" for kind in STEPS}
    chosen = Chosen({} if results is None else {RESULTS: results}, {}, [])
    results = _decisive(store, chosen.take(store, RESULTS, names[RESULTS])) if results is None else results
    if results is None:
        for kind, name in names.items():
            chosen.take(store, kind, name)
        models = [one for kind, one in chosen.found.items() if kind.endswith("-model")]
        if models and all(map(_is_fine_tuned, models)):
            chosen.absent = {
                kind: why for kind, why in chosen.absent.items() if kind == RESULTS or kind not in chosen.unmade
            }
        return chosen
    chosen.found[RESULTS] = results
    of_fine_tuning = _is_of_fine_tuning(store, results)
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
            if not of_fine_tuning:  # which has no other stages
                chosen.absent[kind] = f"No {name} was used for {results.reference}."
        else:
            chosen.use(kind, entry, results.reference)
    chosen.found = {kind: chosen.found[kind] for kind in STEPS if kind in chosen.found}
    chosen.problems.reverse()  # put causes before their consequences
    return chosen


def _decisive(store: Store, newest: Artifact | None) -> Artifact | None:
    """The newest evaluation not from a fine-tuning, which covers only one stage; otherwise the newest one."""
    if newest is None or not _is_of_fine_tuning(store, newest):
        return newest
    name, number = newest.manifest.name, newest.manifest.version
    for version in reversed([version for version in store.versions(name) if version < number]):
        with suppress(UserError):  # skip damaged ones
            found = store.load(name, version)
            if not _is_of_fine_tuning(store, found):
                return found
    return newest


def _is_of_fine_tuning(store: Store, results: Artifact) -> bool:
    models = [entry.artifact for entry in inputs(store, results) if entry.role == "model" and entry.artifact]
    return any(map(_is_fine_tuned, models))


def _is_fine_tuned(model: Artifact) -> bool:
    return fine_tuning_of(model.manifest.producer.command) is not None


def _history(store: Store, artifact: Artifact) -> dict[str, Input]:
    """All ancestors of an artifact, by name; the nearest of each name."""
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


# What the report shows of a prepared data set: its row lengths, and the refused rows with reasons.

BUDGET = 2_000_000
"""Tokens to read if no index provides the lengths; larger sets are sampled."""
WIDTH = 460


def read_data_set(artifact: Artifact, store: Store, family: str) -> DataSet:
    """Read lengths and refused rows of a data artifact. Damage is shown in the report and does not stop it."""
    try:
        found = find_set(str(artifact.path), store, family)
        refused = read_refused(found.folder / REJECTED) or []
        splits = [split for split in found.splits if split.name == "train"] or list(found.splits)
        lengths, sampled = _lengths(splits)
    except UserError as error:
        return DataSet(problem=str(error))
    bins = histogram(lengths)
    title, unit = LENGTHS[found.kind]
    note = f"{splits[0].name if len(splits) == 1 else 'all tasks'}{f', {sampled}' if sampled else ''}"
    drawn = bar_chart(Histogram(title, unit, bins, note, "base"), WIDTH) if bins else None
    return DataSet(drawn, quantile(lengths, 0.5), max(lengths, default=0), refused)


def _lengths(splits: Sequence[Split]) -> tuple[Counter[int], str]:
    """Number of sequences by length, and a note if they were sampled for lack of an index."""
    found, notes = Counter[int](), []
    for split in splits:
        known = split.lengths()
        if known is None:
            notes.append(split.sample_note(BUDGET) or "")
            known = Counter[int]()
            for example in split.scan(BUDGET):
                known.update(len(sequence.ids) for sequence in example.sequences)
                known.update([len(example.question)] if not example.sequences and example.question else [])
        found += known
    return found, next(filter(None, notes), "")


# Durations of steps, from their manifests, so that a pipeline and a later report agree.


def seconds_of(artifact: Artifact) -> float | None:
    """Seconds of the last attempt, from its start until publication; None if unknown.

    Manifests of earlier versions only have both timestamps, in whole seconds.
    """
    made = artifact.manifest
    last = made.segments[-1] if made.segments else {}
    if isinstance(measured := last.get("seconds"), int | float):
        return float(measured)
    try:
        began, ended = (datetime.fromisoformat(moment) for moment in (last["began"], made.created_at))
    except (KeyError, TypeError, ValueError):
        return None
    seconds = (ended - began).total_seconds()
    return seconds if seconds > 0 else None


def total(artifacts: Iterable[Artifact]) -> float | None:
    """Sum over all steps; None if any is unknown."""
    known = [seconds_of(artifact) for artifact in artifacts]
    return sum(filter(None, known)) if known and None not in known else None
