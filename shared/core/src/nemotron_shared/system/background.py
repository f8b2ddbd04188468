"""Run a function in a forked process while this one continues: unlike a thread, it does not share the GIL.

answer = call_in_background(load_and_count, path)
...
answer()        # waits for load_and_count(path), and returns its result or raises its exception
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from nemotron_shared.system.process import end_with_parent, forked, forking

Result = TypeVar("Result")


def can_fork() -> bool:
    """Whether it is safe to fork: no other thread may be holding a lock."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


class Fork(Generic[Result]):
    """A forked process that calls a function. Side effects stay in that process.

    Args:
        function: its result must be picklable.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(function, theirs, os.getpid()), daemon=True)
        with forking():
            self._process.start()
        theirs.close()  # the child has its own copy, so we see EOF when it ends

    def result(self) -> Result:
        """The function's result; waits as long as the process lives.

        Raises:
            EOFError: the process ended without a result.
        """
        try:
            return self._answer.recv()
        except OSError as error:  # it died while sending its answer
            raise EOFError from error

    def end(self) -> None:
        """Kill the process and clean up."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def _work(function: Callable[[], Any], answer: Connection, parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # inherited handlers of the parent would save
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, signal.SIGKILL)
    forked()
    code = 1
    try:
        answer.send(function())
        code = 0
    finally:
        os._exit(code)  # do not close or flush anything the parent has open


def call_in_background(function: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
    """Start `function(*arguments)` in a forked process; if forking is not safe, call it when the result is needed.

    Returns:
        A function to call once: waits for the (pickled) result, or raises the function's exception.
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
            return function(*arguments)  # the child was killed; this process may still succeed
        finally:
            fork.end()
        if not good:
            raise result
        return result

    return answer
