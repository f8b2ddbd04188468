"""Stop on SIGTERM or Ctrl-C: at once if nothing would be lost, otherwise as soon as the current work is saved.

with stop_signals(run):
    load_model()                  # a signal ends this anywhere
    with run.watched():
        for step in steps:
            if run.stop_requested:    # a signal only sets this
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

from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

STOPPED_EXIT_CODE = 130
ECHO_SECONDS = 2.0
"""One request may arrive several times: Slurm signals every process of a job, and parents pass signals on."""

ONCE_MORE_SECONDS = 0.05


class Stopped(UserError):
    """The run was stopped and has saved its state."""

    exit_code = STOPPED_EXIT_CODE


class Interrupted(KeyboardInterrupt):
    """Raised by a signal, anywhere in the running code.

    Not an `Exception`: libraries catch those as failures of their own, and some continue.
    """

    exit_code = STOPPED_EXIT_CODE


class Stoppable(Protocol):
    """The part of a run that signal handlers use."""

    name: str
    stop_requested: bool
    stop_at_once: bool


@contextmanager
def stop_signals(run: Stoppable) -> Generator[None]:
    """Request a stop on the first signal; end the process on another one, if it is not an echo of the first."""
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
            with suppress(RuntimeError):  # the signal arrived while another line was being printed
                say(f"[{run.name}] {signal.Signals(number).name}: stopping (again to stop at once)")
        if run.stop_at_once:
            raise Interrupted

    def unraised(lost: Any) -> None:
        """Send the signal again if its exception was lost because it was raised in a destructor."""
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
    """Until a run is open, make SIGTERM act like Ctrl-C: exit after cleaning up files being written."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def ignore_echoes() -> None:
    """At exit, ignore repeated requests to stop: an exception raised now would only be printed by Python's shutdown.

    A later signal ends the process, which must then be hanging.
    """
    ended = time.monotonic()

    def heard(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - ended >= ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
