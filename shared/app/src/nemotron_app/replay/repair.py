"""Put files of a damaged artifact back in place: only bytes that are, by their digest, those that were published."""

import os
import shutil
from pathlib import Path

from nemotron_app.training_log import folder_that_made
from nemotron_shared import atomic
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.claim import STAGING
from nemotron_shared.digest import file_digest


def repair(store: Store, artifact: Artifact, now: Artifact) -> list[str]:
    """Replace the damaged files of an artifact of the store by those of `now`, where their digests agree.

    What is another file each time, as times are, may still lie in the folder of its run.

    Returns:
        The names of the files that were put back. Its manifest stays as it is, and so does what is not in it, or in
        the way.
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
    """What lies where a file of an artifact belongs, and is not to be replaced: a folder there, or something else than
    a folder, as a link out of the artifact, in the place of one of its folders."""
    file = artifact.path / name
    above = file.parents[: name.count("/")]
    found = next(
        (one for one in reversed(above) if os.path.lexists(one) and (one.is_symlink() or not one.is_dir())), None
    )
    return found or (file if file.is_dir() and not file.is_symlink() else None)


def _holds(file: Path, sha256: str) -> bool:
    return file.is_file() and file_digest(file) == sha256
