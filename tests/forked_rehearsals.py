"""Rehearse trainings in forks of a process that has torch: a new process would import it for seven seconds of CPU time.

tests/test_rehearsal.py has one rehearsal in a new process, as users have it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

from nemotron_shared.stages import STAGES
from nemotron_shared.step import rehearsal

NEEDED = ("nemotron_app", "trl", "lm_eval", "stages", *(f"stages.{stage}" for stage in STAGES))
"""What a fork server imports. A member of the workspace by itself lacks some, and so do engines' environments."""


def install() -> None:
    """Do so in this process and in its forks, where the fork servers can."""
    if None not in map(find_spec, NEEDED):
        change(partial(setattr, rehearsal), list, SimpleNamespace(run=run_in_fork))


def change(set_: Callable[[str, Any], object], ending_with_us: Callable[..., list[str]], subprocess: Any) -> None:
    """Change both names by which a rehearsal starts its process."""
    set_("ending_with_us", ending_with_us)
    set_("subprocess", subprocess)


def run_in_fork(command: Sequence[str], env: Mapping[str, str], **_: Any) -> "CompletedProcess[str]":
    """Replacement for `subprocess.run`."""
    from support import run_forked

    return run_forked(command, Path.cwd(), env)
