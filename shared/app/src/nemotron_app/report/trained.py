"""Trainings to lay beside each other: from a run's folder while it works, or from the model that it made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nemotron_app.report.collect import read_results
from nemotron_app.report.reading import read_log
from nemotron_app.runs import holder_now, run_state
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.names import is_path, parse_reference
from nemotron_shared.config.compose import leaves
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.metrics import FILE
from nemotron_shared.stages import RESULTS

LAST_STEP = "train.train_iters"
Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
        state: running, stopped or finished.
        settings: of its config, by dotted key; empty where its folder is gone.
        scores: (task, metric) -> value, of an evaluation of its model.
    """

    name: str
    state: str
    entries: Entries
    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The last one that was logged."""
        return self.entries[-1]["step"] if self.entries else 0

    @property
    def steps(self) -> int | None:
        """How many it is to make."""
        return self.settings.get(LAST_STEP)


def training_named(store: Store, wanted: str, family: str) -> Trained:
    """The training that a person means: a model's name, the name of a run, or the folder of either.

    Raises:
        UserError: there is no such training, or what is meant has no log of one.
    """
    folder = Path(wanted).expanduser() if is_path(wanted) else store.home / "runs" / wanted
    if (folder / FILE).is_file() and not (folder / "manifest.json").is_file():
        return training_in(folder)
    artifact = store.resolve(wanted) if is_path(wanted) else store.resolve(parse_reference(wanted, family))
    if not (artifact.path / FILE).is_file():
        raise UserError(f"{artifact.reference} has no log of a training", "name models, or runs: nemotron runs --all")
    return _of_artifact(store, artifact)


def training_in(folder: Path) -> Trained:
    """The training of a run's folder, however far it is."""
    return Trained(folder.name, run_state(folder).state, read_log(folder / FILE), _settings(folder))


def trainings_running(store: Store) -> list[Trained]:
    """Those that run now, whether they have logged a step or not."""
    folders = sorted(path.parent for path in (store.home / "runs").glob("*/config.yaml"))
    found = (training_in(folder) for folder in folders if holder_now(folder))
    return [one for one in found if one.steps]


def _of_artifact(store: Store, artifact: Artifact) -> Trained:
    made = artifact.manifest
    settings = _settings(store.home / "runs" / f"{made.name}-{made.producer.config_digest[:12]}")
    entries = read_log(artifact.path / FILE)
    return Trained(artifact.reference, "finished", entries, settings, _scores(store, artifact.reference))


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "config.yaml"
    return dict(leaves(yaml.safe_load(file.read_text(encoding="utf-8")))) if file.is_file() else {}


def _scores(store: Store, reference: str) -> dict[tuple[str, str], float]:
    """Of the newest evaluation that scored this very model."""
    for name in (name for name in store.names() if name.endswith(f"-{RESULTS}")):
        for version in sorted(store.versions(name), reverse=True):
            results = read_results(store.resolve(f"{name}:v{version}"))
            models = {key for key, model in results["models"].items() if model["reference"] == reference}
            if models:
                scores = (score for score in results["scores"] if score["model"] in models)
                return {(score["task"], score["metric"]): score["value"] for score in scores}
    return {}
