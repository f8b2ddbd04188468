"""The log of a finished training, checked against what was published.

log = log_of(artifact, store)
log.entries      # one for each step
log.problem      # "super3-sft-model:v1: its metrics.jsonl is damaged: ...; restore it: cp ..."
"""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.housekeeping import INPUTS, run_folder
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import FILE, metrics_with_damage, read_metrics


@dataclass(frozen=True)
class Log:
    """Complete entries of a metrics.jsonl. `problem` describes damage to the file and the remedy."""

    entries: list[dict[str, Any]]
    problem: str | None = None


def log_of(artifact: Artifact, store: Store) -> Log:
    """Read the log in an artifact and check it against the digest in the manifest."""
    file, published = artifact.path / FILE, artifact.manifest.files.get(FILE)
    if published and file.is_file() and file_digest(file) == published.sha256:
        with suppress(UserError):  # a line that was already damaged when it was published
            return Log(read_log(file))
    entries, damage = metrics_with_damage(file)
    if published and not file.exists():
        damage = ["it is missing"]
    elif published and file.is_file() and file_digest(file) != published.sha256:
        damage = ["it is not what was published", *damage]
    if not damage:
        return Log(entries)
    copy = folder_that_made(artifact, store) / FILE
    remedy = f"see what else is: nemotron artifacts verify {artifact.reference}"
    if published and not file.is_dir() and copy.is_file() and file_digest(copy) == published.sha256:
        remedy = f"the run's folder has it whole: {shlex.join(['cp', str(copy), str(file)])}"
    return Log(entries, f"{artifact.reference}: its {FILE} is damaged: {summed_up(damage)}; {remedy}")


def log_in(folder: Path) -> Log:
    """Read the log in a run's folder, which may still be growing."""
    entries, damage = metrics_with_damage(folder / FILE)
    return Log(entries, f"{folder / FILE} is damaged: {summed_up(damage)}" if damage else None)


def folder_that_made(artifact: Artifact, store: Store) -> Path:
    """The run folder of an artifact, which may be gone or reused."""
    return run_folder(store, artifact.manifest.name, artifact.manifest.producer.config_digest)


def folder_still_of(artifact: Artifact, store: Store) -> Path:
    """The run folder of an artifact, as the run that made it has left it.

    Raises:
        UserError: it is gone, or another run has worked in it since: with `--force`, say, or with other code.
    """
    folder = folder_that_made(artifact, store)
    if not folder.is_dir():
        made = f"it was made by: {artifact.manifest.producer.command}"
        raise UserError(f"{artifact.reference}: the folder of its run is gone: {folder}", made)
    is_its_own = _has_its_log if FILE in artifact.manifest.files else _is_newest_of
    if not is_its_own(artifact, store, folder):
        remedy = f"see the version alone: nemotron artifacts show {artifact.reference}; "
        remedy += f"the other run: nemotron runs show {folder.name}"
        raise UserError(f"{artifact.reference}: the folder of its run was used again: {folder}", remedy)
    return folder


def _has_its_log(artifact: Artifact, store: Store, folder: Path) -> bool:
    """Whether a folder has the log that was published. It has times in it, so that no two runs write the same."""
    log = folder / FILE
    return log.is_file() and file_digest(log) == artifact.manifest.files[FILE].sha256


def _is_newest_of(artifact: Artifact, store: Store, folder: Path) -> bool:
    """Whether an artifact without a log, such as data, is the last that was begun in a folder."""
    if (folder / INPUTS).is_file():  # another one was begun
        return False
    made = artifact.manifest
    for version in store.versions(made.name):
        if version > made.version:
            with suppress(UserError):  # damaged
                if store.load(made.name, version).manifest.producer.config_digest == made.producer.config_digest:
                    return False
    return True


def summed_up(damage: Sequence[str]) -> str:
    """The first two problems, and the number of others."""
    more = f", and {len(damage) - 2} more" if len(damage) > 2 else ""
    return "; ".join(damage[:2]) + more


LONG = 4_000
"""Logs with at least this many entries are thinned."""
Points = list[tuple[float, float]]


class Entries(list[dict[str, Any]]):
    """The kept entries of a log, and for each metric the window and points of its moving mean over all entries."""

    def __init__(self, kept: list[dict[str, Any]], means: dict[str, tuple[int, Points]] | None = None) -> None:
        super().__init__(kept)
        self.means = means or {}


class Drawn(list[tuple[float, float]]):
    """Thinned points, with the moving mean of all original points."""

    def __init__(self, points: Points, mean: tuple[int, Points]) -> None:
        super().__init__(points)
        self.mean = mean


def read_log(path: Path) -> Entries:
    """The entries of a metrics file, thinned if there are very many.

    Raises:
        UserError: a line other than an unfinished last one is not JSON.
    """
    start = list(islice(read_metrics(path), LONG + 1))
    if len(start) <= LONG:
        return Entries(start)
    from nemotron_app.thinning import thinned_log  # imported here because its libraries load slowly

    return Entries(*thinned_log(path, LONG))


def drawn(entries: Sequence[dict[str, Any]], name: str) -> Points:
    """Step and value of each entry that has the metric."""
    points = [(entry["step"], entry[name]) for entry in entries if name in entry]
    means = entries.means if isinstance(entries, Entries) else {}
    return Drawn(points, means[name]) if name in means else points
