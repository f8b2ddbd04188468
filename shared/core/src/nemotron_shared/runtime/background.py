"""Let another process work on something while this one goes on: what holds Python's lock cannot be left to a thread.

answer = call_in_background(load_and_count, path)
...
answer()        # waits, and returns what load_and_count(path) returned, or raises what it raised
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from nemotron_shared.runtime.process import end_with_parent, forked, forking

Result = TypeVar("Result")


def can_fork() -> bool:
    """Whether a copy of this process would work: no thread that could hold a lock at that moment."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


class Fork(Generic[Result]):
    """A copy of this process that calls a function. What it does to what it has stays with it.

    Args:
        function: its result must be picklable.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(function, theirs, os.getpid()), daemon=True)
        with forking():
            self._process.start()
        theirs.close()  # the copy holds its own, whose end is seen

    def result(self, patience: float | None = None) -> Result:
        """What the function returned.

        Args:
            patience: seconds to wait for it; None: as long as the copy is there.

        Raises:
            EOFError: the copy has ended without a result, or takes longer.
        """
        try:
            if self._answer.poll(patience):
                return self._answer.recv()
        except OSError as error:  # it ended in the middle of its answer
            raise EOFError from error
        raise EOFError

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def _work(function: Callable[[], Any], answer: Connection, parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handlers have come along, and would save
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)
    forked()
    code = 1
    try:
        answer.send(function())
        code = 0
    finally:
        os._exit(code)  # nothing that the parent has opened is to be closed or flushed here


def call_in_background(function: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
    """Begin `function(*arguments)` in a copy of this process; where none can be made, it is called when asked for.

    Returns:
        A function to call once: waits for the result, which was pickled, or raises what was raised.
    """
    if not can_fork():
        return lambda: function(*arguments)

    def told() -> tuple[bool, Any]:
        try:
            return True, function(*arguments)
        except Exception as error:
            return False, error

    fork = Fork(told)

    def answer() -> Result:
        try:
            good, result = fork.result()
        except EOFError:
            return function(*arguments)  # the copy was killed; what killed it may not stop this one
        finally:
            fork.end()
        if not good:
            raise result
        return result

    return answer
