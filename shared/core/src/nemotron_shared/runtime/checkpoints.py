"""Checkpoints that are either complete or ignored.

The Trainer writes a checkpoint as many files. A marker, written last, says that all of them are there; a
kill before that leaves a folder that the next run deletes.
"""

import os
import re
import shutil
from pathlib import Path

from nemotron_shared.atomic import sync_directory, write_text

COMPLETE = "COMPLETE"
NAME = re.compile(r"checkpoint-(\d+)")


def step_of(path: Path) -> int:
    """The step a checkpoint folder was written after; -1 for any other folder."""
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def latest(directory: Path) -> Path | None:
    """The newest complete checkpoint."""
    complete = [path for path in _all(directory) if (path / COMPLETE).is_file()]
    return complete[-1] if complete else None


def mark_complete(checkpoint: Path) -> None:
    """Declare all files of a checkpoint written, after they have reached the disk."""
    for path in checkpoint.rglob("*"):
        if path.is_file():
            _sync_file(path)
    sync_directory(checkpoint)
    write_text(checkpoint / COMPLETE, "")


def prune(directory: Path, keep: int) -> None:
    """Delete incomplete checkpoints and all but the newest `keep` complete ones."""
    complete = [path for path in _all(directory) if (path / COMPLETE).is_file()]
    kept = set(complete[-keep:])
    for path in _all(directory):
        if path not in kept:
            shutil.rmtree(path)


def _all(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if step_of(path) >= 0), key=step_of)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
