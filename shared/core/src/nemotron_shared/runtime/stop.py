"""Stop on SIGTERM or Ctrl-C: at once where nothing would be lost, else as soon as the work at hand is saved.

with stop_signals(run):
    load_model()                  # a signal ends this wherever it is
    with run.watched():
        for step in steps:
            if run.stop_requested:    # a signal does no more than set this
                ...
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say

STOPPED_EXIT_CODE = 130
ECHO_SECONDS = 2.0
"""One request may come several times: Slurm signals every process of a job, and parents pass on what they get."""

ONCE_MORE_SECONDS = 0.05


class Stopped(UserError):
    """The run was asked to stop and has saved what it had."""

    exit_code = STOPPED_EXIT_CODE


class Interrupted(KeyboardInterrupt):
    """Raised by the signal itself, between two lines of whatever runs.

    No `Exception`: libraries take those for failures of their own, and some go on.
    """

    exit_code = STOPPED_EXIT_CODE


class Stoppable(Protocol):
    """What a signal finds."""

    name: str
    stop_requested: bool
    stop_at_once: bool


@contextmanager
def stop_signals(run: Stoppable) -> Generator[None]:
    """The first signal asks the work to stop; another, later than an echo of the first, ends the process."""
    asked_at = 0.0
    again: threading.Timer | None = None

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at, again
        now = time.monotonic()
        if again is not None:
            again = None
        elif run.stop_requested:
            if now - asked_at < ECHO_SECONDS:
                return
            asked_at = now
            raise KeyboardInterrupt
        else:
            run.stop_requested, asked_at = True, now
            with suppress(RuntimeError):  # the signal came while another line was being printed
                say(f"[{run.name}] {signal.Signals(number).name}: stopping (again to stop at once)")
        if run.stop_at_once:
            raise Interrupted

    def unraised(lost: Any) -> None:
        """What a signal raises in a destructor goes nowhere: it comes once more, when that has ended."""
        nonlocal again
        if lost.exc_type is not Interrupted:
            report(lost)
            return
        again = threading.Timer(ONCE_MORE_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
        again.start()

    report, sys.unraisablehook = sys.unraisablehook, unraised
    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if again is not None:
            again.cancel()
            again.join()
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


def end_on_sigterm() -> None:
    """Until a run is open, SIGTERM does what Ctrl-C does: end, with what is being written put in order."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def ignore_echoes() -> None:
    """At the end of a process: what a request that came once more raises would be lost, and told, in Python's own exit.

    Later than an echo it ends the process, which then hangs.
    """
    ended = time.monotonic()

    def heard(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - ended >= ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
