"""Half of some work in a copy of this process, where a core would be idle.

    with Beside(lambda: answers(second)) as other:
        found = answers(first) + other.result()

A copy has all that this process holds, at no cost in time or memory worth naming, and what it does to that stays with
it: only the result comes back.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

from nemotron_shared.runtime.background import Fork
from nemotron_shared.runtime.distributed import world_size
from nemotron_shared.runtime.machine import has_accelerator

Item = TypeVar("Item")
Result = TypeVar("Result")
PATIENCE = 10.0
"""How often the time that our half took may pass before the copy is given up; it never came to that."""
PATIENT_SECONDS = 60.0


def core_to_spare(threads: int | None) -> bool:
    """Whether a copy of this process, which computes with so many threads, would have cores of its own.

    Ranks share the cores already, and a process that may have talked to a GPU cannot be copied.
    """
    if sys.platform != "linux" or threads is None or world_size() > 1 or has_accelerator():
        return False
    return len(os.sched_getaffinity(0)) >= 2 * threads


def in_halves(threads: int | None, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`work` of each item, in order; where there is a core to spare, every second one in a copy of this process."""
    if len(items) < 2 or not core_to_spare(threads):
        return [work(item) for item in items]
    with Beside(lambda: [work(item) for item in items[1::2]]) as other:
        ours, theirs = [work(item) for item in items[::2]], other.result()
    return [(theirs if number % 2 else ours)[number // 2] for number in range(len(items))]


class Beside(Generic[Result]):
    """Work that a copy of this process does meanwhile. If the copy fails, the work is done here.

    Args:
        work: what it does; the result must be picklable. It is done twice, if need be.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work

    def __enter__(self) -> "Beside[Result]":
        self._fork, self._began = Fork(self._work), time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left of the copy."""
        self._fork.end()

    def result(self) -> Result:
        """What came out of it, as soon as it is there."""
        with suppress(EOFError):
            return self._fork.result(PATIENT_SECONDS + PATIENCE * (time.monotonic() - self._began))
        return self._work()
