"""Restore files of a damaged artifact in place, using only bytes whose digest matches the published one."""

import os
import shutil
from pathlib import Path

from nemotron_app.training_log import folder_that_made
from nemotron_shared import atomic
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.store import STAGING
from nemotron_shared.digest import file_digest


def repair(store: Store, artifact: Artifact, now: Artifact) -> list[str]:
    """Replace the damaged files of an artifact of the store by those of `now`, if their digests agree.

    Files that differ on every run, such as times, may still be found in the folder of its run.

    Returns:
        The names of the restored files. The manifest, files that are not listed in it, and obstacles are left alone.
    """
    (store.root / STAGING).mkdir(exist_ok=True)
    waiting = atomic.temporary_folder(store.root / STAGING, f"{artifact.manifest.name}-")
    repaired, run = [], folder_that_made(artifact, store)
    try:
        for number, (name, entry) in enumerate(artifact.manifest.files.items()):
            file, copy = artifact.path / name, waiting / str(number)
            if in_the_way(artifact, name) or _holds(file, entry.sha256):
                continue
            whole = next((one for one in (now.path / name, run / name) if _holds(one, entry.sha256)), None)
            if whole is None:
                continue
            atomic.copy_content(whole, copy)
            if not _holds(copy, entry.sha256):
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copymode(whole, copy)
            atomic.sync(copy)
            copy.replace(file)
            atomic.sync(file.parent)
            repaired.append(name)
    finally:
        shutil.rmtree(waiting, ignore_errors=True)
    return repaired


def in_the_way(artifact: Artifact, name: str) -> Path | None:
    """The obstacle in place of an artifact's file that must not be replaced: a folder, or a parent that is not a real
    folder, such as a symlink out of the artifact.
    """
    file = artifact.path / name
    above = file.parents[: name.count("/")]
    found = next(
        (one for one in reversed(above) if os.path.lexists(one) and (one.is_symlink() or not one.is_dir())), None
    )
    return found or (file if file.is_dir() and not file.is_symlink() else None)


def _holds(file: Path, sha256: str) -> bool:
    return file.is_file() and file_digest(file) == sha256
