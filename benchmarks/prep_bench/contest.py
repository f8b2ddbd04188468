"""Compare programs: every round runs each of them once, so that load on the machine affects all equally."""

import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from prep_bench.process_tree import CommandFailed, Usage, run_measured

SLOW_SECONDS = 60


@dataclass
class Contestant:
    """One program on one input."""

    name: str
    command: list[str]
    output: Path
    """Output folder; emptied before each run."""
    check: Callable[["Contestant", Usage], Any] = lambda contestant, usage: None
    """Checks the output after each run; all runs must give equal results."""
    own_timer: Callable[["Contestant", Usage], float | None] = lambda contestant, usage: None
    """Seconds of work by the program's own clock, without start-up."""
    environment: dict[str, str] = field(default_factory=dict)
    peer: bool = True
    """False for our programs."""
    may_fail: bool = False
    """Report a failure, as for peers, instead of ending the section."""
    most_rounds: int | None = None


class Score(NamedTuple):
    """Medians over the runs of one contestant."""

    name: str
    runs: int
    wall_s: float
    cpu_s: float
    peak_mb: float | None
    largest_mb: float | None
    own_s: float | None
    found: Any
    """Result of `check`."""
    peer: bool
    every_wall_s: list[float]


class Missing(NamedTuple):
    """A peer that was not run, or did not finish."""

    name: str
    why: str


def compete(contestants: Sequence[Contestant], rounds: int, slow_rounds: int, folder: Path) -> list[Score | Missing]:
    """Run all contestants in rounds, in the given folder.

    Args:
        slow_rounds: rounds for a peer whose first run takes more than a minute.
    """
    runs: dict[str, list[tuple[Usage, float | None, Any]]] = {contestant.name: [] for contestant in contestants}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for contestant in contestants:
            done = runs[contestant.name]
            if contestant.name in failed or len(done) >= _allowed(contestant, done, rounds, slow_rounds):
                continue
            print(f"  round {number + 1}: {contestant.name} ...", end=" ", file=sys.stderr, flush=True)
            try:
                done.append(run_once(contestant, folder))
            except CommandFailed as error:
                if not (contestant.peer or contestant.may_fail):
                    raise
                failed[contestant.name] = str(error)
            print(f"{done[-1][0].wall_s:.1f} s" if done else "failed", file=sys.stderr, flush=True)
    return [
        Missing(c.name, failed[c.name]) if c.name in failed else score(c, runs[c.name]) for c in contestants
    ]  # fmt: skip


def _allowed(contestant: Contestant, done: list[tuple[Usage, float | None, Any]], rounds: int, slow: int) -> int:
    most = contestant.most_rounds or rounds
    return min(most, slow) if contestant.peer and done and done[0][0].wall_s > SLOW_SECONDS else most


def run_once(contestant: Contestant, folder: Path) -> tuple[Usage, float | None, Any]:
    shutil.rmtree(contestant.output, ignore_errors=True)
    contestant.output.mkdir(parents=True)
    try:
        usage = run_measured(contestant.command, contestant.environment, folder)
        return usage, contestant.own_timer(contestant, usage), contestant.check(contestant, usage)
    finally:
        shutil.rmtree(contestant.output, ignore_errors=True)


def score(contestant: Contestant, runs: list[tuple[Usage, float | None, Any]]) -> Score:
    """Medians; raises `CommandFailed` if two runs gave different results."""
    usages = [usage for usage, _, _ in runs]
    if any(found != runs[0][2] for _, _, found in runs):
        raise CommandFailed(f"{contestant.name}: two runs gave different results")

    def median(name: str) -> float:
        return statistics.median(getattr(usage, name) for usage in usages)

    own = [seconds for _, seconds, _ in runs if seconds is not None]
    return Score(
        contestant.name, len(runs), median("wall_s"), median("cpu_s"), median("peak_mb"), median("largest_mb"),
        statistics.median(own) if own else None, runs[0][2], contestant.peer, [usage.wall_s for usage in usages],
    )  # fmt: skip
