"""Rehearse trainings in forks of a process that has torch: a new process would import it for seven seconds of CPU time.

tests/test_rehearsal.py has one rehearsal in a new process, as users have it.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

from nemotron_shared.stages import STAGES
from nemotron_shared.step import rehearsal


def install() -> None:
    """Use it for rehearsals that this process and its forks start, where the fork servers have all stages."""
    if None in map(find_spec, ("nemotron_app", *(f"stages.{stage}" for stage in STAGES))):
        return  # a member of the workspace by itself
    change(lambda name, value: setattr(rehearsal, name, value), list, SimpleNamespace(run=run_in_fork))


def change(set_: Callable[[str, Any], object], ending_with_us: Callable[..., list[str]], subprocess: Any) -> None:
    """Change both names by which a rehearsal starts its process."""
    set_("ending_with_us", ending_with_us)
    set_("subprocess", subprocess)


def run_in_fork(command: Sequence[str], env: Mapping[str, str], **_: Any) -> "CompletedProcess[str]":
    """Replacement for `subprocess.run`."""
    from support import run_forked

    return run_forked(command, Path.cwd(), env)
