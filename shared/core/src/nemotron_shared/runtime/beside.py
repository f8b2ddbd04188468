"""Half of some work in a copy of this process, where a core would be idle.

    with Beside(lambda: answers(second)) as other:
        found = answers(first) + other.result()

A copy has all that this process holds, at no cost in time or memory worth naming, and what it does to that stays with
it: only the result comes back.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, TypeVar

from nemotron_shared.runtime.distributed import world_size
from nemotron_shared.runtime.machine import DRIVER
from nemotron_shared.runtime.process import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")
PATIENCE = 10.0
"""How often the time that our half took may pass before the copy is given up; it never came to that."""
PATIENT_SECONDS = 60.0


def core_to_spare(threads: int | None) -> bool:
    """Whether a copy of this process, which computes with so many threads, would have cores of its own.

    Ranks share the cores already, and a process that may have talked to a GPU cannot be copied.
    """
    if sys.platform != "linux" or threads is None or world_size() > 1 or DRIVER.exists():
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
        context = multiprocessing.get_context("fork")
        self._answer, ours = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(self._work, ours, os.getpid()), daemon=True)
        self._process.start()
        ours.close()  # the copy holds its own, and its end is seen
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left of the copy."""
        self._process.kill()
        self._process.join()
        self._answer.close()

    def result(self) -> Result:
        """What came out of it, as soon as it is there."""
        with suppress(EOFError, OSError):
            if self._answer.poll(PATIENT_SECONDS + PATIENCE * (time.monotonic() - self._began)):
                return self._answer.recv()
        return self._work()


def _work(work: Callable[[], Result], answer: Connection, parent: int) -> None:
    # the parent ends the copy; a Ctrl-C that reaches both is the parent's
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)
    try:
        answer.send(work())
    except BaseException:  # the work is done again, where it can be told what is wrong
        os._exit(1)
