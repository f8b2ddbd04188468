"""`nemotron report --compare`: several trainings in numbers and in shared charts, finished or running.

It only reads files that the trainings write, without affecting them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemotron_app import output, wording
from nemotron_app.charts import Point, Series, moving_mean
from nemotron_app.output import Table
from nemotron_app.report.results import read_results, results_problem
from nemotron_app.report.training import (
    LAST_POINTS,
    LOGARITHMIC,
    Panel,
    facts,
    large_panel,
    points,
    speed,
    window_of,
)
from nemotron_app.runs import run_state
from nemotron_app.training_log import folder_that_made, log_in, log_of
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.housekeeping import inputs_of
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.artifacts.names import SHORT_NAMES, is_path, parse_exact, parse_reference
from nemotron_shared.artifacts.verified import manifest_problem
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import leaves
from nemotron_shared.stages import RESULTS
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import FILE, METRICS, Metric

NAME_ONE = "name models, or runs: nemotron runs --all"
DRAWN: dict[Metric, str] = {
    "loss": "Loss", "reward": "Reward", "valid_loss": "Validation loss", "valid_reward": "Validation reward",
    "grad_norm": "Gradient norm", "lr": "Learning rate", "entropy": "Entropy",
    "completion_length": "Tokens per answer", "tokens_per_second": "Tokens per second", "memory_gb": "Memory held, GB",
}  # fmt: skip
EXACT = {"lr", "valid_loss", "valid_reward", "memory_gb"}
"""Metrics drawn unsmoothed; others as a moving mean, so that several curves remain distinguishable."""
SPEED = "Between one logged step and the next."
Cell = float | str | None


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
        identity: equal for two names of the same training.
        state: running, stopped or finished.
        settings: of its config, by dotted key, with resolved versions in place of `latest`.
        scores: (task, metric) -> value, of an evaluation of its model.
        notes: what is damaged or unknown.
    """

    name: str
    identity: str
    state: str
    entries: list[dict[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[tuple[str, str], float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        """The last logged step."""
        return max((entry["step"] for entry in self.entries), default=0)

    @property
    def steps(self) -> int | None:
        """The planned number of steps."""
        steps = self.settings.get("train.train_iters")
        return steps if isinstance(steps, int) else None


def training_named(store: Store, wanted: str, family: str) -> Trained:
    """Find a training by the name of a model, the name of a run, or the folder of either.

    Raises:
        UserError: no such training, or it has no training log.
    """
    run, folder = store.home / "runs" / wanted, Path(wanted).expanduser()
    if "/" not in wanted and run.is_dir():
        return _training_of_run(store, run)
    if not is_path(wanted) and (wanted in SHORT_NAMES or not folder.is_dir()):
        return _training_of(store, store.resolve(parse_reference(wanted, family)))
    if (folder / MANIFEST).is_file():
        found = _training_of(store, Artifact(Manifest.read(folder / MANIFEST), folder.resolve()))
        return found if folder.resolve().is_relative_to(store.root.resolve()) else replace(found, name=str(folder))
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", NAME_ONE)
    return _training_of_run(store, folder)


def training_in(folder: Path) -> Trained:
    """The training of a run's folder, which may be unfinished."""
    log, (settings, unknown) = log_in(folder), _settings(folder)
    notes = tuple(filter(None, (log.problem, unknown)))
    resolved = _resolved(settings, map(str, inputs_of(folder)))
    return Trained(folder.name, str(folder.resolve()), run_state(folder).state, log.entries, resolved, notes=notes)


def _training_of_run(store: Store, folder: Path) -> Trained:
    """A run; if finished, with facts about the newest model that it made."""
    if not (folder / FILE).exists() and not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: has no log of a training ({FILE})", NAME_ONE)
    found = training_in(folder)
    if not found.entries and not found.notes:
        state = "has logged" if found.state == "running" else f"was {found.state} before it had logged"
        raise UserError(f"{folder.name} {state} a step: there is nothing to compare", NAME_ONE)
    name, _, digest = folder.name.rpartition("-")
    for version in reversed(store.versions(name)) if digest and found.state == "finished" else ():
        with suppress(UserError):
            made = store.load(name, version)
            if made.manifest.producer.config_digest.startswith(digest):
                model = _training_of(store, made, found)
                return replace(model, name=found.name, notes=(*found.notes, *model.notes))
    return found


def _training_of(store: Store, artifact: Artifact, run: Trained | None = None) -> Trained:
    """A finished training, by its model. Log and settings are those of its run where `run` is given."""
    scores, problems = _scores(store, artifact.reference)
    parents = [parent.reference for parent in artifact.manifest.parents]
    identity = f"{artifact.reference} {artifact.manifest.digest}"
    if run is not None:
        settings = _resolved(run.settings, parents)
        return Trained(artifact.reference, identity, "finished", run.entries, settings, scores, tuple(problems))
    log = log_of(artifact, store)
    if not log.entries and not log.problem:
        raise UserError(f"{artifact.reference} has no log of a training", NAME_ONE)
    settings, unknown = _settings(folder_that_made(artifact, store))
    unknown = unknown and f"{artifact.reference}: {unknown}"
    notes = tuple(filter(None, (manifest_problem(artifact), log.problem, unknown, *problems)))
    return Trained(artifact.reference, identity, "finished", log.entries, _resolved(settings, parents), scores, notes)


def _settings(folder: Path) -> tuple[dict[str, Any], str | None]:
    """The settings of a run's folder, or why they are unknown."""
    file = folder / "config.yaml"
    if not file.exists():
        return {}, f"its settings are not known: {folder} is gone"
    try:
        config = parsed(file, read_text(file))
    except UserError:
        config = None
    if not isinstance(config, dict):
        return {}, f"its settings are not known: {file} is damaged"
    return dict(leaves(config)), None


def _resolved(settings: Mapping[str, Any], references: Iterable[str]) -> dict[str, Any]:
    """Replace references such as `latest` in the settings by the versions that were read."""
    exact = {found.name: str(found) for found in map(parse_exact, references) if found}
    known = dict(settings)
    for key in ("run.data", "run.model"):
        with suppress(UserError):
            reference = known.get(key)
            if isinstance(reference, str) and not is_path(reference):
                name = parse_reference(reference, str(known.get("run.name") or known.get("run.family"))).name
                known[key] = exact.get(name, reference)
    return known


def _scores(store: Store, reference: str) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Scores from the newest evaluation of exactly this model, and a note for each unreadable evaluation."""
    problems = []
    for name in (name for name in store.names() if name.endswith(f"-{RESULTS}")):
        for version in sorted(store.versions(name), reverse=True):
            try:
                evaluation = store.load(name, version)
                results = read_results(evaluation)
            except UserError as error:
                problems.append(f"{name}:v{version} cannot be read: {error.message}")
                continue
            models = {key for key, model in results["models"].items() if model["reference"] == reference}
            if models:
                changed = results_problem(evaluation)
                problems += [changed] if changed else []
                scores = (score for score in results["scores"] if score["model"] in models)
                return {(score["task"], score["metric"]): score["value"] for score in scores}, problems
    return {}, problems


@dataclass(frozen=True)
class Figure:
    """One row of the comparison: its name, each training's value, and its format."""

    key: str
    label: str
    values: Sequence[Cell]
    write: Callable[[Any], str] = str


def render(trainings: Sequence[Trained], title: str) -> str:
    """Render the page."""
    values = {
        "title": title,
        "numbers": numbers(trainings),
        "settings": differing_settings(trainings),
        "notes": notes(trainings),
        "panels": panels(trainings),
        "names": [one.name for one in trainings],
    }
    return output.render("overlay.html.jinja", values)


def notes(trainings: Sequence[Trained]) -> list[str]:
    """Damage and unknowns of all trainings, without repetition."""
    return list(dict.fromkeys(note for one in trainings for note in one.notes))


def figures(trainings: Sequence[Trained]) -> list[Figure]:
    """Progress, speed and final results of each training, without rows that are empty for all."""
    known = [facts(one.entries) for one in trainings]
    known = [each if each.reward is None else replace(each, loss=None, valid_loss=None) for each in known]
    found = [
        Figure("state", "state", [one.state for one in trainings]),
        Figure("step", "last step", [one.step for one in trainings]),
        Figure("steps", "steps in all", [one.steps for one in trainings]),
        Figure("seconds", "training loop", [each.seconds for each in known], wording.duration),
    ]
    for key, label in (
        ("tokens_per_second", "tokens/s"),
        ("loss", f"loss, mean of last {LAST_POINTS}"),
        ("valid_loss", "validation loss"),
        ("reward", f"reward, mean of last {LAST_POINTS}"),
        ("valid_reward", "validation reward"),
        ("memory_gb", "memory held, GB"),
    ):
        values = [getattr(each, key.removesuffix("_gb")) for each in known]
        found.append(Figure(key, label, values, wording.number))
    for task, metric in dict.fromkeys(key for one in trainings for key in one.scores):
        values = [one.scores.get((task, metric)) for one in trainings]
        label = f"{task}, {wording.metric_name(metric)}"
        found.append(Figure(f"{task}/{metric}", label, values, lambda value, of=metric: wording.value(of, value)))
    return [one for one in found if any(value is not None for value in one.values)]


def numbers(trainings: Sequence[Trained]) -> Table:
    """The figures as a text table: a row per figure, a column per training."""
    rows = [
        [one.label, *("–" if value is None else one.write(value) for value in one.values)] for one in figures(trainings)
    ]
    return Table(["figure", *(one.name for one in trainings)], rows)


def plain(trainings: Sequence[Trained]) -> list[dict[str, Cell]]:
    """The figures as JSON; unknown or non-finite values are null."""
    found: list[dict[str, Cell]] = [{"training": one.name} for one in trainings]
    for figure in figures(trainings):
        for row, value in zip(found, figure.values, strict=True):
            row[figure.key] = None if isinstance(value, float) and not math.isfinite(value) else value
    return found


def differing(trainings: Sequence[Trained]) -> dict[str, dict[str, Any]]:
    """Settings that are not equal in all trainings with a known config, and their values."""
    known = [one for one in trainings if one.settings]
    found = {}
    for key in dict.fromkeys(key for one in known for key in one.settings):
        values = {one.name: one.settings[key] for one in known if key in one.settings}
        if len(values) < len(known) or len({wording.setting(value) for value in values.values()}) > 1:
            found[key] = values
    return found


def differing_settings(trainings: Sequence[Trained]) -> Table | None:
    """The differing settings as a table, or None."""
    known = [one.name for one in trainings if one.settings]
    rows = [
        [key, *(wording.setting(values[name]) if name in values else "(none)" for name in known)]
        for key, values in differing(trainings).items()
    ]
    return Table(["setting", *known], rows) if rows else None


def panels(trainings: Sequence[Trained]) -> list[tuple[Panel, str]]:
    """One chart for each metric that any of them logged, and the meaning of the metric."""
    found = []
    for name, title in DRAWN.items():
        lines = [_points(one, name) for one in trainings]
        windows = [1 if name in EXACT else window_of(line) for line in lines]
        series = [
            Series(one.name, moving_mean(line, window), tint=tint)
            for tint, (one, line, window) in enumerate(zip(trainings, lines, windows, strict=True))
            if line
        ]
        may_be_log = name in {*LOGARITHMIC, "valid_loss"}
        if series and (panel := large_panel(title, series, from_zero=not may_be_log, may_be_log=may_be_log)):
            means = ", ".join(str(window) for window in sorted(set(windows)) if window > 1)
            note = ", ".join(filter(None, (panel.note, f"moving mean of {means} points" if means else "")))
            found.append((replace(panel, note=note), SPEED if name == "tokens_per_second" else METRICS[name]))
    return found


def _points(one: Trained, name: Metric) -> list[Point]:
    if name == "tokens_per_second":
        return speed(one.entries)
    if name.endswith("loss") and points(one.entries, "reward"):
        return []  # the loss is not meaningful in RL
    return points(one.entries, name)
