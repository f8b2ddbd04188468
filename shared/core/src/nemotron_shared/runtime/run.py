"""The working folder of one step, and what a step says while it works.

The folder's name is made from what the work is: its inputs, and those settings that name the result. The same command
therefore finds the folder of a run that was cut off and goes on there, even where how it is done has changed.
"""

import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from nemotron_shared.errors import UserError
from nemotron_shared.lock import locked, record_of
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.distributed import barrier, rank
from nemotron_shared.runtime.metrics import FILE as METRICS
from nemotron_shared.runtime.metrics import MetricsLog
from nemotron_shared.runtime.segments import continued, read_segments, write_segments

LOCK_NAME = "lock"
STOPPED_EXIT_CODE = 130


class Stopped(UserError):
    """The run was asked to stop and has saved what it had."""


class Run:
    """Folder, metrics and stop flag of one step.

    Folders: `checkpoints/` holds what a rerun continues from; `output/` becomes the artifact. `fingerprint` names what
    is made and the code that makes it.
    """

    def __init__(self, directory: Path, name: str, fingerprint: str = "") -> None:
        self.directory = directory
        self.name = name
        self.fingerprint = fingerprint
        self.checkpoints = directory / "checkpoints"
        self.output = directory / "output"
        self.metrics = MetricsLog(directory / METRICS)
        self.stop_requested = False

    def say(self, line: str) -> None:
        """One line for people, from rank 0 only."""
        say(f"[{self.name}] {line}")

    def goes_on_from(self, step: int) -> None:
        """Say, and note in the run's folder, that this attempt continues an earlier one after `step`."""
        self.say(f"continuing from step {step}")
        self.note_start(step)

    def note_start(self, step: int) -> None:
        """Note where this attempt begins: 0 where nothing of an earlier one is used."""
        if rank() == 0 and (segments := read_segments(self.directory)):
            write_segments(self.directory, continued(segments, step))

    def stop_if_requested(self) -> None:
        """End here, between two pieces of work that are each kept, when a signal asked for it."""
        if self.stop_requested:
            raise Stopped(f"[{self.name}] stopped", "run the same command again to continue")

    def forget(self) -> None:
        """Remove everything but the lock."""
        lock = self.directory / LOCK_NAME
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in (lock, record_of(lock)):
                path.unlink()

    def fresh_output(self) -> Path:
        """An empty output folder, whatever an earlier attempt left there."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        return self.output


@contextmanager
def open_run(directory: Path, name: str, fingerprint: str, *, saves_on_stop: bool) -> Generator[Run]:
    """Enter a run's folder under a lock.

    Args:
        saves_on_stop: the work watches `stop_requested`, so SIGTERM and SIGINT ask it to save and stop.

    Raises:
        UserError: another process works in the same folder.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory, name, fingerprint)
    with locked(directory / LOCK_NAME, wait=False) if rank() == 0 else nullcontext():
        barrier()
        with _stop_signals(run) if saves_on_stop else nullcontext():
            yield run


@contextmanager
def _stop_signals(run: Run) -> Generator[None]:
    """The first signal asks the loop to save and stop; the second ends the process."""

    def request(number: int, frame: FrameType | None) -> None:
        if run.stop_requested:
            raise KeyboardInterrupt
        run.stop_requested = True
        run.say(f"{signal.Signals(number).name}: saving, then stopping (again to stop at once)")

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
