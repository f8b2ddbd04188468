"""A campaign: many inputs for one target, in a process of its own, which may hang or die without ending the rest."""

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from nemotron_prove.input.smaller import smaller
from nemotron_prove.input.target import Files, Target
from nemotron_prove.input.targets import target_named
from nemotron_prove.input.trial import FAILURES, Verdict, input_of, tried

START, SILENCE = 900.0, 300.0
"""Seconds until the first word of a process, which imports libraries first, and between words: then it is taken to
hang where no signal reaches it. Generous, as other work may hold the machine."""
MOST_MEMORY = 16 << 30
MOST_DEATHS = 5
EVERY = 0.5


@dataclass(frozen=True)
class Failure:
    """The first input of its kind: its number finds it again. `files` is what is left of it when it is made small."""

    number: int
    verdict: Verdict
    files: Files


@dataclass
class Tally:
    """What came of the inputs of a target. `seconds` are of processor time."""

    target: str
    kinds: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    seconds: float = 0.0
    damaged: int = 0
    """Of the inputs, those that are no examples."""

    @property
    def inputs(self) -> int:
        """How many were tried."""
        return self.kinds.total()

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return sum(self.kinds[kind] for kind in FAILURES)

    def add(self, number: int, verdict: Verdict, files: Files, *, damaged: bool = True) -> bool:
        """Count one; tells whether it is a failure of a kind that is new."""
        self.kinds[verdict.kind] += 1
        self.damaged += damaged
        is_new = verdict.kind in FAILURES and verdict.signature not in self.failures
        if is_new:
            self.failures[verdict.signature] = Failure(number, verdict, files)
        return is_new


def ground() -> Path:
    """A folder for inputs: in memory where there is such a place."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="nemotron-input-", dir=memory if os.access(memory, os.W_OK) else None))


def run_here(target: Target, seed: int, numbers: Iterable[int], folder: Path, end: float = float("inf")) -> Tally:
    """Try inputs in this process, until there are no more or the time is over."""
    examples, tally, began = list(target.examples()), Tally(target.name), time.process_time()
    for number in numbers:
        if time.monotonic() > end:
            break
        files = input_of(target, examples, seed, number)
        tally.add(number, tried(target, files, folder / "in"), files, damaged=number >= len(examples))
    tally.seconds = time.process_time() - began
    return tally


def made_small(target: Target, failure: Failure, folder: Path) -> Failure:
    """The failure with as little of its input as still fails in the same way."""
    same = failure.verdict.signature

    def fails(files: Files) -> bool:
        return tried(target, files, folder / "in").signature == same

    return Failure(failure.number, failure.verdict, smaller(failure.files, fails))


def run_apart(name: str, seed: int, count: int, seconds: float) -> Tally:
    """Try inputs in another process; where it dies, the input that killed it is a failure, and the next one follows."""
    total, first, end = Tally(name), 0, time.monotonic() + seconds
    for _ in range(MOST_DEATHS):
        first = _some(name, seed, range(first, count), end, total)
        if first >= count or time.monotonic() > end:
            break
    return total


def _some(name: str, seed: int, numbers: range, end: float, total: Tally) -> int:
    """Add what a process tells to `total`; gives the number of the input to go on with."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    at = context.Value("q", numbers.start, lock=False)
    child = context.Process(target=_work, args=(name, seed, numbers, max(0.0, end - time.monotonic()), theirs, at))
    child.start()
    theirs.close()
    patience = START
    with suppress(EOFError):
        while mine.poll(patience):
            last, tally = mine.recv()
            patience = SILENCE
            _merge(total, tally)
            if last is None:
                child.join()
                return numbers.stop
    child.kill()
    child.join()
    examples = list(target_named(name).examples())
    files = input_of(target_named(name), examples, seed, at.value)
    how = "no answer" if child.exitcode == -9 else f"exit code {child.exitcode}"
    total.add(at.value, Verdict("died", how, f"died: {how}"), files, damaged=at.value >= len(examples))
    return at.value + 1


def _merge(total: Tally, tally: Tally) -> None:
    total.kinds += tally.kinds
    total.seconds += tally.seconds
    total.damaged += tally.damaged
    total.failures = tally.failures | total.failures


def _work(name: str, seed: int, numbers: range, seconds: float, out: Connection, at: "multiprocessing.Value") -> None:  # ty: ignore[invalid-type-form]
    """What the other process does: tell every now and then, so that little is lost when it dies."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    folder = ground()
    try:
        _try_all(target_named(name), seed, numbers, time.monotonic() + seconds, folder, out, at)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try_all(
    target: Target,
    seed: int,
    numbers: range,
    end: float,
    folder: Path,
    out: Connection,
    at: "multiprocessing.Value",  # ty: ignore[invalid-type-form]
) -> None:
    examples, seen = list(target.examples()), set()
    out.send((numbers.start, Tally(target.name)))
    tally, told, began = Tally(target.name), time.monotonic(), time.process_time()
    for number in numbers:
        at.value = number
        files = input_of(target, examples, seed, number)
        verdict = tried(target, files, folder / "in")
        if tally.add(number, verdict, files, damaged=number >= len(examples)) and verdict.signature not in seen:
            seen.add(verdict.signature)
            tally.failures[verdict.signature] = made_small(target, tally.failures[verdict.signature], folder)
        if time.monotonic() > min(told + EVERY, end):
            tally.seconds = time.process_time() - began
            out.send((number, tally))
            tally, told, began = Tally(target.name), time.monotonic(), time.process_time()
        if time.monotonic() > end:
            break
    tally.seconds = time.process_time() - began
    out.send((None, tally))
