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
from typing import Any, TypeVar

from nemotron_shared.runtime.process import end_with_parent

Result = TypeVar("Result")


def can_fork() -> bool:
    """Whether a copy of this process would work: no thread that could hold a lock at that moment."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


def call_in_background(function: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
    """Begin `function(*arguments)` in a copy of this process; where none can be made, it is called when asked for.

    Returns:
        A function to call once: waits for the result, which was pickled, or raises what was raised.
    """
    if not can_fork():
        return lambda: function(*arguments)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    parent = os.getpid()

    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handlers have come along, and would save
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_with_parent(parent, signal.SIGKILL)
        try:
            theirs.send((True, function(*arguments)))
        except Exception as error:
            theirs.send((False, error))
        theirs.close()
        os._exit(0)  # nothing that the parent has opened is to be closed or flushed here

    process = context.Process(target=work, daemon=True)
    process.start()
    theirs.close()

    def answer() -> Result:
        try:
            good, result = ours.recv()
        except EOFError:
            return function(*arguments)  # the copy was killed; what killed it may not stop this one
        finally:
            ours.close()
            process.join()
        if not good:
            raise result
        return result

    return answer
