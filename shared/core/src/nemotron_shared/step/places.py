"""Links at paths chosen by the user: to a result, and while it is being made, to its run's folder.

    run.publish_to=results/mine            -> artifacts/super3-sft-model/v3
    logger.log_dir=logs                    -> runs/super3-sft-model-0123456789ab; if `logs` is a folder with files, a
                                              link of that name inside it
    checkpoint.checkpoint_dir=checkpoints  -> the checkpoints in that folder; at the end, the result

Everything stays in the store and these paths link to it: nothing is copied, and no identity depends on them. A link is
put in place with a single rename. It only ever replaces an earlier link into the same store, or an empty folder.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.engine.spec import Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.atomic import TEMPORARY_PREFIX, sync, why_closed
from nemotron_shared.system.errors import Finding, UserError, disk_remedy, lacking, problem

PUBLISH_TO, LOG_DIR, CHECKPOINT_DIR = "run.publish_to", "logger.log_dir", "checkpoint.checkpoint_dir"
ANOTHER = "name a path that does not exist, or remove what is there"


def place_problems(config: StageConfig, name: str, store: Store, machine: Machine) -> Iterator[Finding]:
    """Problems with the chosen paths, found before the work rather than after it.

    Args:
        name: of the artifact being made.
    """
    chosen = _chosen(config) if machine.sees_files else {}
    for key, path in chosen.items():
        below = store.root / name if key == PUBLISH_TO else store.home
        above = next(folder for folder in path.parents if folder.exists())
        if path.parent.resolve().is_relative_to(store.home.resolve()):
            yield problem(f"{path} is inside the store", "choose a path outside of it", key)
        elif not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            yield problem(f"{above}: not a folder that this account can write to", "choose another path", key)
        elif key == LOG_DIR and _is_folder(path):
            pass  # the link goes into it
        elif taken := _taken(path, below):
            yield problem(f"{path} {taken}", ANOTHER, key)
    if len(set(chosen.values())) < len(chosen):
        yield problem(f"{' and '.join(chosen)} name the same path", "name different paths", next(iter(chosen)))


def store_problems(store: Store, machine: Machine) -> Iterator[Finding]:
    """Why the store takes no files; a finished result in it can be used all the same."""
    if machine.sees_files and (closed := why_closed(store.home)):
        remedy = "set NEMOTRON_HOME, or run.home, to a folder that this account can write to"
        yield lacking(f"{store.home}: the store cannot be written: {closed}", remedy, "run.home")


def show_run(task: Task[Any]) -> None:
    """Create the links to a run that starts or resumes.

    Raises:
        UserError: a path has been taken since it was checked, or is not writable.
    """
    chosen = _chosen(task.config)
    _show_logs(task, chosen.get(LOG_DIR))
    if path := chosen.get(CHECKPOINT_DIR):
        _link(CHECKPOINT_DIR, path, task.run.checkpoints, task.store.home)


def show_result(task: Task[Any], artifact: Artifact) -> None:
    """Create the links to a result, just published or reused.

    Raises:
        UserError: as in `show_run`; the result is in the store anyway, and the same command retries the link.
    """
    chosen = _chosen(task.config)
    if task.run.directory.is_dir():
        _show_logs(task, chosen.get(LOG_DIR))
    for key, below in ((CHECKPOINT_DIR, task.store.home), (PUBLISH_TO, task.store.root / task.name)):
        if path := chosen.get(key):
            _link(key, path, artifact.path, below)


def _chosen(config: StageConfig) -> dict[str, Path]:
    asked = {PUBLISH_TO: config.run.publish_to}
    if isinstance(config, TrainingConfig):
        asked |= {LOG_DIR: config.logger.log_dir, CHECKPOINT_DIR: config.checkpoint.checkpoint_dir}
    return {key: Path(os.path.abspath(Path(text).expanduser())) for key, text in asked.items() if text is not None}  # noqa: PTH100 - without following links


def _show_logs(task: Task[Any], path: Path | None) -> None:
    if path is None:
        return
    inside = _is_folder(path) and any(path.iterdir())
    _link(LOG_DIR, path / task.run.directory.name if inside else path, task.run.directory, task.store.home)


def _link(key: str, path: Path, target: Path, below: Path) -> None:
    """Link a path to a target, replacing only a link that leads below the folder `below`."""
    if taken := _taken(path, below):
        raise UserError(f"{key}: {path} {taken}", ANOTHER)
    try:
        if path.is_symlink() and path.readlink() == target:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}"
        temporary.symlink_to(target)
        try:
            if _is_folder(path):
                path.rmdir()
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EISDIR):  # filled since it was checked
            raise UserError(f"{key}: {path} holds something already", ANOTHER) from error
        raise UserError(f"{key}: {path}: cannot be made: {error.strerror}", disk_remedy(error)) from error


def _taken(path: Path, below: Path) -> str | None:
    """What occupies a path, if we may not replace it."""
    if path.is_symlink():
        target = path.readlink()
        return None if target.is_absolute() and target.is_relative_to(below) else f"is a link to {target}"
    if path.is_dir():
        return "holds something already" if any(path.iterdir()) else None
    return "is a file" if path.exists() else None


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
