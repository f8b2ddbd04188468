"""Publish a finished folder as the next version of a name with a single rename, so no lock is needed.

    claim(store.root, directory, manifest)      directory is artifacts/super3-sft-model/v3 now

Renaming onto a non-empty folder fails, so of two writers one takes the number and the other tries the next. A
folder on another file system is copied into `.staging` first.
"""

import errno
import shutil
import time
from dataclasses import replace
from pathlib import Path

from nemotron_shared import atomic
from nemotron_shared.artifacts.artifact import Artifact, seal, table_digest
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.errors import UserError

HOME_VARIABLE = "NEMOTRON_HOME"
STAGING = ".staging"
STALE_SECONDS = 24 * 3600
TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


def claim(root: Path, directory: Path, manifest: Manifest) -> Artifact:
    """Take the first free version number by renaming, rewriting the manifest for each attempt."""
    shelf = root / manifest.name
    _make_folder(shelf)
    while True:
        atomic.write_bytes(directory / MANIFEST, manifest.to_bytes())
        folder = shelf / f"v{manifest.version}"
        try:
            directory.rename(folder)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return _claim_copy(root, directory, manifest)
            if error.errno not in TAKEN:
                raise UserError(f"{directory}: cannot be moved to {folder}: {error.strerror}") from error
            manifest = replace(manifest, version=manifest.version + 1)
        else:
            atomic.sync(shelf)
            return Artifact(manifest, folder)


def _claim_copy(root: Path, directory: Path, manifest: Manifest) -> Artifact:
    """Copy into the store's file system first; the original is removed once the copy is published."""
    staging = root / STAGING
    _make_folder(staging)
    sweep(staging)
    staged = atomic.temporary_folder(staging, f"{manifest.name}-")
    try:
        try:
            # Contents only: the copies get new times, which tell `sweep` they are in use.
            shutil.copytree(directory, staged, symlinks=True, copy_function=shutil.copyfile, dirs_exist_ok=True)
        except OSError as error:
            raise UserError(f"{directory}: cannot be copied into the store: {error}", "free space there") from error
        if table_digest(seal(staged, links=True)) != manifest.digest:
            raise UserError(f"{directory}: changed while it was copied", "publish when nothing writes to it")
        artifact = claim(root, staged, manifest)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(directory)
    return artifact


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be made: {error.strerror}", f"set {HOME_VARIABLE} to a folder you can write to"
        ) from error


def sweep(staging: Path) -> None:
    """Remove the remains of killed copies once nothing in them has changed for a day."""
    for folder in staging.iterdir():
        if last_change(folder) < time.time() - STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def last_change(folder: Path) -> float:
    try:
        return max(path.lstat().st_mtime for path in [folder, *folder.rglob("*")])
    except FileNotFoundError:
        return time.time()  # another process is publishing or sweeping it
