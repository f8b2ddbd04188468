"""Trainings to compare, read from a run's folder while it is active, or from the finished model."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nemotron_app.report.results import read_results, results_problem
from nemotron_app.runs import holder_now, run_state
from nemotron_app.training_log import folder_that_made, log_in, log_of
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.housekeeping import inputs_of
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.artifacts.names import SHORT_NAMES, is_path, parse_exact, parse_reference
from nemotron_shared.artifacts.verified import manifest_problem
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import leaves
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.metrics import FILE
from nemotron_shared.stages import RESULTS

LAST_STEP = "train.train_iters"
NAME_ONE = "name models, or runs: nemotron runs --all"
Entries = list[dict[str, Any]]


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
    entries: Entries
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
        steps = self.settings.get(LAST_STEP)
        return steps if isinstance(steps, int) else None


def training_named(store: Store, wanted: str, family: str) -> Trained:
    """Find a training by the name of a model, the name of a run, or the folder of either.

    Raises:
        UserError: no such training, or it has no training log.
    """
    run, folder = store.home / "runs" / wanted, Path(wanted).expanduser()
    if "/" not in wanted and run.is_dir():
        return _of_run(store, run)
    if is_path(wanted) or (wanted not in SHORT_NAMES and folder.is_dir()):
        return _of_folder(store, folder)
    return _of_artifact(store, store.resolve(parse_reference(wanted, family)))


def training_in(folder: Path) -> Trained:
    """The training of a run's folder, which may be unfinished."""
    log, (settings, unknown) = log_in(folder), _settings(folder)
    notes = tuple(filter(None, (log.problem, unknown)))
    resolved = _resolved(settings, map(str, inputs_of(folder)))
    return Trained(folder.name, str(folder.resolve()), run_state(folder).state, log.entries, resolved, notes=notes)


def trainings_running(store: Store) -> list[Trained]:
    """All running trainings, even if they have not logged a step yet."""
    folders = sorted(path.parent for path in (store.home / "runs").glob("*/config.yaml"))
    found = (training_in(folder) for folder in folders if holder_now(folder))
    return [one for one in found if one.steps]


def _of_folder(store: Store, folder: Path) -> Trained:
    if (folder / MANIFEST).is_file():
        artifact = Artifact(Manifest.read(folder / MANIFEST), folder.resolve())
        found = _of_artifact(store, artifact)
        return found if folder.resolve().is_relative_to(store.root.resolve()) else replace(found, name=str(folder))
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder", NAME_ONE)
    return _of_run(store, folder)


def _of_run(store: Store, folder: Path) -> Trained:
    """A run; if finished, with facts about its model."""
    if not (folder / FILE).exists() and not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: has no log of a training ({FILE})", NAME_ONE)
    found = training_in(folder)
    if not found.entries and not found.notes:
        state = "has logged" if found.state == "running" else f"was {found.state} before it had logged"
        raise UserError(f"{folder.name} {state} a step: there is nothing to compare", NAME_ONE)
    made = _made_by(store, folder) if found.state == "finished" else None
    if made is None:
        return found
    parents = [parent.reference for parent in made.manifest.parents]
    scores, problems = _scores(store, made.reference)
    return replace(
        found,
        identity=_identity(made),
        settings=_resolved(found.settings, parents),
        scores=scores,
        notes=(*found.notes, *problems),
    )


def _made_by(store: Store, folder: Path) -> Artifact | None:
    """The newest artifact that a finished run made."""
    name, _, digest = folder.name.rpartition("-")
    for version in reversed(store.versions(name)) if digest else ():
        with suppress(UserError):
            artifact = store.load(name, version)
            if artifact.manifest.producer.config_digest.startswith(digest):
                return artifact
    return None


def _of_artifact(store: Store, artifact: Artifact) -> Trained:
    log = log_of(artifact, store)
    if not log.entries and not log.problem:
        raise UserError(f"{artifact.reference} has no log of a training", NAME_ONE)
    settings, unknown = _settings(folder_that_made(artifact, store))
    resolved = _resolved(settings, [parent.reference for parent in artifact.manifest.parents])
    scores, problems = _scores(store, artifact.reference)
    unknown = unknown and f"{artifact.reference}: {unknown}"
    notes = tuple(filter(None, (manifest_problem(artifact), log.problem, unknown, *problems)))
    return Trained(artifact.reference, _identity(artifact), "finished", log.entries, resolved, scores, notes)


def _identity(artifact: Artifact) -> str:
    return f"{artifact.reference} {artifact.manifest.digest}"


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
            asked = known.get(key)
            if isinstance(asked, str) and not is_path(asked):
                name = parse_reference(asked, str(known.get("run.family"))).name
                known[key] = exact.get(name, asked)
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
