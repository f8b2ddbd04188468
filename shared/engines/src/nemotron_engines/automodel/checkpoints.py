"""Automodel's checkpoint folders, `epoch_0_step_99`, that are either complete or ignored.

Automodel counts steps from 0 and names a folder before it is written. A marker of ours, written last, says that
everything is there; what a kill left behind without one is deleted before the next run.
"""

import re
import shutil
from pathlib import Path

from nemotron_shared.runtime.checkpoints import COMPLETE

NAME = re.compile(r"epoch_(\d+)_step_(\d+)")


def steps_done(path: Path) -> int:
    """Optimizer steps that a checkpoint holds; 0 for any other folder."""
    match = NAME.fullmatch(path.name)
    return int(match[2]) + 1 if match else 0


def latest(directory: Path) -> Path | None:
    """The newest complete checkpoint."""
    complete = [path for path in _all(directory) if (path / COMPLETE).is_file()]
    return max(complete, key=steps_done, default=None)


def forget_incomplete(directory: Path) -> None:
    """Delete checkpoints without a marker, and links, which may point at them."""
    for path in _all(directory):
        if not (path / COMPLETE).is_file():
            shutil.rmtree(path)
    for path in directory.glob("*"):
        if path.is_symlink() and not path.exists():
            path.unlink()


def _all(directory: Path) -> list[Path]:
    return [path for path in directory.glob("epoch_*_step_*") if path.is_dir() and not path.is_symlink()]
