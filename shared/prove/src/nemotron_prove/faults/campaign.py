"""Try case after case on several workers, as long as there is time, and add up what became of them."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import count as count_from
from pathlib import Path
from typing import Any

from nemotron_prove.faults.bench import Bench
from nemotron_prove.faults.child import adopt_orphans
from nemotron_prove.faults.parts import PARTS, Part
from nemotron_prove.faults.tried import Tried

SHARES = {"store": 0.72, "prepare": 0.22, "train": 0.06}
"""Of the cases that `--count` asks for."""
TIMES = {"store": 0.2, "prepare": 0.45, "train": 0.35}
"""Of the time: a case of the store takes some hundredths of a second, one of a training several seconds."""

_benches: dict[str, Bench] = {}  # of this worker, opened with its first case


@dataclass(frozen=True)
class Outcome:
    """A case with what became of it; `prepare-17` is its name."""

    part: str
    number: int
    kind: str
    target: str
    tried: Tried

    @property
    def case(self) -> str:
        return f"{self.part}-{self.number}"


@dataclass
class Sum:
    """What was counted over the cases of one kind."""

    faults: int = 0
    not_reached: int = 0
    finished: int = 0
    bytes_lost: int = 0
    silent: int = 0
    tracebacks: int = 0
    left: int = 0
    failed: int = 0

    def add(self, tried: Tried) -> None:
        """Count one more case."""
        if not tried.happened:
            self.not_reached += 1
        else:
            self.faults += 1
            self.finished += tried.finished
        self.bytes_lost += tried.bytes_lost
        self.silent += tried.silent
        self.tracebacks += tried.tracebacks
        self.left += tried.left
        self.failed += bool(tried.wrong)


@dataclass
class Record:
    """All that a campaign found."""

    seed: int
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failures(self) -> list[Outcome]:
        return sorted((one for one in self.outcomes if one.tried.wrong), key=lambda one: (one.part, one.number))

    def sums(self) -> dict[tuple[str, str], Sum]:
        """By part and kind."""
        found: dict[tuple[str, str], Sum] = {}
        for part in PARTS.values():
            for kind in part.kinds:
                of_kind = [one for one in self.outcomes if (one.part, one.kind) == (part.name, kind)]
                if of_kind:
                    total = found[part.name, kind] = Sum()
                    for one in of_kind:
                        total.add(one.tried)
        return found

    def total(self) -> Sum:
        """Over all cases."""
        total = Sum()
        for one in self.outcomes:
            total.add(one.tried)
        return total

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        kinds = [{"part": part, "kind": kind, **asdict(found)} for (part, kind), found in self.sums().items()]
        failures = [
            {
                "case": one.case,
                "kind": one.kind,
                "target": one.target,
                **asdict(one.tried),
                "again": again(self.seed, one),
            }
            for one in self.failures
        ]
        return {"seed": self.seed, "seconds": round(self.seconds), "total": asdict(self.total()), "kinds": kinds,
                "failures": failures}  # fmt: skip


def again(seed: int, outcome: Outcome) -> str:
    """The command that shows one case again."""
    return f"nemotron prove faults --seed {seed} --only {outcome.case}"


def run_campaign(
    seed: int, place: Path, workers: int, numbers: dict[str, Iterable[int]], minutes: float | None,
    show: Callable[[Outcome], None],
) -> Record:  # fmt: skip
    """Try the cases of each part by their numbers until its share of the time is over.

    Args:
        place: a folder for the workers' stores.
        show: told of each case as it ends.
    """
    began, record = time.monotonic(), Record(seed)
    asked = [part for part in PARTS.values() if part.name in numbers]
    whole = sum(TIMES[part.name] for part in asked)
    until = began
    for part in asked:
        until += (minutes or 0) * 60 * TIMES[part.name] / whole
        for outcome in _try_all(part, seed, place, workers, numbers[part.name], until if minutes else None):
            record.outcomes.append(outcome)
            show(outcome)
    record.seconds = time.monotonic() - began
    return record


def _try_all(
    part: Part, seed: int, place: Path, workers: int, numbers: Iterable[int], until: float | None
) -> Iterable[Outcome]:
    part.get_ready()
    waiting, running = iter(numbers), set[Future[Outcome]]()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, initializer=adopt_orphans) as pool:
        while True:
            while len(running) < workers and (until is None or time.monotonic() < until):
                if (number := next(waiting, None)) is None:
                    break
                running.add(pool.submit(_try, part.name, seed, number, place))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _try(part_name: str, seed: int, number: int, place: Path) -> Outcome:
    """In a worker: one case."""
    part = PARTS[part_name]
    if part_name not in _benches:
        _benches[part_name] = part.open_bench(place / f"{part_name}-{os.getpid()}")
    kind, target, tried = part.attempt(_benches[part_name], seed, number)
    return Outcome(part_name, number, kind, target, tried)


def numbers_of(count: int | None, only: Sequence[str]) -> dict[str, Iterable[int]]:
    """The numbers of the cases of each part: some by name, a count in all, or as many as there is time for."""
    if only:
        chosen: dict[str, Iterable[int]] = {}
        for part in PARTS:
            found = [int(name.rpartition("-")[2]) for name in only if name.rpartition("-")[0] == part]
            chosen |= {part: found} if found else {}
        return chosen
    if count is None:
        return {part: count_from(1) for part in PARTS}
    counts = {part: round(count * share) for part, share in SHARES.items()}
    return {part: range(1, number + 1) for part, number in counts.items() if number}
