"""Life after life until as many kills were made as were asked for, on each number of processes."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nemotron_prove.faults.bench import Bench
from nemotron_prove.resume.lives import Alone, Life, live
from nemotron_prove.resume.trainings import Training, drawn
from nemotron_shared.errors import UserError

LIVES = 2
"""Of one training: what it makes when it is left alone has to be found out first, which takes as long as a life."""
MISSED = 5
"""Kills that may come too late for each one that comes in time, before something must be wrong."""


@dataclass
class Found:
    """All that a campaign found."""

    seed: int
    lives: list[Life] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def differing(self) -> list[Life]:
        """The lives that did not end as they should."""
        return [life for life in self.lives if life.differing]

    def kills(self, processes: int | None = None) -> int:
        """How many there were, on a number of processes or on all."""
        return sum(len(life.hits) for life in self.lives if processes in (None, life.processes))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds),
            "kills": self.kills(),
            "differing": len(self.differing),
            "lives": [asdict(life) for life in self.lives],
        }


def run_campaign(
    seed: int, bench: Bench, counts: Sequence[int], kills: int, show: Callable[[Life], None],
    trainings: Callable[[int, int, Path], Iterator[Training]] = drawn,
) -> Found:  # fmt: skip
    """Make so many kills on each number of processes.

    Args:
        bench: with the bases that the trainings start from.
        show: told of each life as it ends.

    Raises:
        UserError: a training does not work even without kills, or ends before nearly every kill.
    """
    began, found = time.monotonic(), Found(seed)
    for processes in counts:
        tried = 0
        for number, training in enumerate(trainings(seed, processes, bench.place)):
            if found.kills(processes) >= kills:
                break
            alone = Alone(bench, training, processes)
            for turn in range(LIVES):
                if (missing := kills - found.kills(processes)) > 0:
                    life = live(alone, random.Random(f"{seed}/{processes}/{number}/{turn}"), missing)
                    found.lives.append(life)
                    show(life)
            tried += LIVES
            if tried > MISSED * kills + MISSED:
                raise UserError(f"{found.kills(processes)} of {tried} trainings could be killed before their end")
    found.seconds = time.monotonic() - began
    return found
