"""Automodel's checkpoint folders, `epoch_0_step_99`: whole by their mark, verified before a run continues from one.

Automodel counts steps from 0 and names a folder before it is written. Its own retention stays off: it would delete
older checkpoints before the new one has its mark.
"""

import re
from collections.abc import Callable
from pathlib import Path

from nemotron_shared.runtime import checkpoints
from nemotron_shared.runtime.checkpoints import Layout, Mark

NAME = re.compile(r"epoch_(\d+)_step_(\d+)")


def steps_done(path: Path) -> int:
    """Optimizer steps that a checkpoint holds; -1 for any other folder."""
    match = NAME.fullmatch(path.name)
    return int(match[2]) + 1 if match else -1


def missing_state(checkpoint: Path, mark: Mark) -> str | None:
    """Weights and optimizer each lie in a folder of their own, whose files depend on how the work is spread."""
    absent = [part for part in ("model", "optim") if not any(name.startswith(f"{part}/") for name in mark.files)]
    return f"{', '.join(absent)} missing" if absent else None


LAYOUT = Layout(steps_done, missing_state)


def resume_point(directory: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; damaged ones are set aside, unfinished ones deleted, and links to either."""
    point = checkpoints.resume_point(directory, LAYOUT, say)
    _forget_dangling_links(directory)
    return point


def prune(directory: Path, *, keep: int, keep_best: bool) -> None:
    """Delete all but the newest checkpoints and the best one, and Automodel's links to what is gone."""
    checkpoints.prune(directory, LAYOUT, keep=keep, keep_best=keep_best)
    _forget_dangling_links(directory)


def _forget_dangling_links(directory: Path) -> None:
    """`LATEST` and `LOWEST_VAL` may point at what is gone."""
    for path in directory.glob("*"):
        if path.is_symlink() and not path.exists():
            path.unlink()
