"""The working folder of one step, and what a step says while it works.

The folder's name is made from what the work is: its inputs, and those settings that name the result. The same command
therefore finds the folder of a run that was cut off and goes on there, even where how it is done has changed.
"""

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from nemotron_shared.errors import UserError
from nemotron_shared.lock import locked, record_of
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.distributed import any_rank, barrier, rank, world_size
from nemotron_shared.runtime.metrics import FILE as METRICS
from nemotron_shared.runtime.metrics import MetricsLog
from nemotron_shared.runtime.segments import continued, read_segments, write_segments
from nemotron_shared.runtime.stop import Interrupted, Stopped, stop_signals

LOCK_NAME = "lock"


class Run:
    """Folder, metrics and stop flag of one step.

    Folders: `checkpoints/` holds what a rerun continues from; `output/` becomes the artifact. `fingerprint` names what
    is made and the code that makes it.

    Attributes:
        began: when this attempt did, by the clock that only runs forward.
        stop_requested: a signal has come.
        stop_at_once: a signal ends the work wherever it is, by raising `Interrupted`.
    """

    def __init__(self, directory: Path, name: str, fingerprint: str = "") -> None:
        self.directory = directory
        self.name = name
        self.fingerprint = fingerprint
        self.checkpoints = directory / "checkpoints"
        self.output = directory / "output"
        self.metrics = MetricsLog(directory / METRICS)
        self.began = time.monotonic()
        self.stop_requested = False
        self.stop_at_once = True

    def say(self, line: str) -> None:
        """One line for people, from rank 0 only."""
        say(f"[{self.name}] {line}")

    def goes_on_from(self, step: int) -> None:
        """Say, and note in the run's folder, that this attempt continues an earlier one after `step`."""
        self.say(f"continuing from step {step}")
        if rank() == 0 and (segments := read_segments(self.directory)):
            write_segments(self.directory, continued(segments, step))

    def stop_if_requested(self) -> None:
        """End here, between two pieces of work that are each kept, when a signal asked for it."""
        if self.stop_requested:
            raise self.stopped()

    def stopped(self) -> Stopped:
        """What to raise when the work has been given up at a signal's request."""
        return Stopped(f"[{self.name}] stopped", "run the same command again to continue")

    def require_all_steps(self, done: int, asked: int) -> None:
        """A training is finished when its steps are done, and not when a library says that it is.

        Raises:
            UserError: it ended before, by itself.
        """
        if done < asked:
            raise UserError(
                f"training ended after step {done} of {asked}, and nobody asked it to; nothing is published",
                f"look at what its library said above, or in {self.directory}; the same command goes on from the last "
                "checkpoint",
            )

    @contextmanager
    def watched(self) -> Generator[None]:
        """Work that has something to save when it is stopped, and therefore looks at `stop_requested` itself."""
        before, self.stop_at_once = self.stop_at_once, False
        try:
            yield
        finally:
            self.stop_at_once = before

    @contextmanager
    def interruptible(self, *, apart: bool = False) -> Generator[None]:
        """A part of watched work that may be given up halfway, because all before it can still be saved.

        One process leaves it in the middle. Ranks would leave others waiting in there, so they agree before they
        begin, and the part is done to its end.

        Args:
            apart: no rank waits for another in this part, so each leaves in the middle, and they agree at its end.

        Raises:
            Interrupted: a signal came, to any rank.
        """
        if world_size() > 1 and not apart:
            if any_rank(self.stop_requested):
                raise Interrupted
            yield
            return
        before, left = self.stop_at_once, False
        try:
            try:
                self.stop_at_once = True
                if self.stop_requested:
                    raise Interrupted
                yield
            finally:
                self.stop_at_once = before
        except Interrupted:
            left = True
        if any_rank(left or self.stop_requested):
            raise Interrupted

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
def open_run(directory: Path, name: str, fingerprint: str) -> Generator[Run]:
    """Enter a run's folder under a lock, and stop when SIGTERM or Ctrl-C asks for it.

    Raises:
        UserError: another process works in the same folder.
        Stopped: a signal came.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory, name, fingerprint)
    with locked(directory / LOCK_NAME, wait=False) if rank() == 0 else nullcontext():
        barrier()
        try:
            with stop_signals(run):
                yield run
        except Interrupted:
            raise run.stopped() from None
        except RuntimeError:
            # A rank that was waiting for one that has stopped sees its connection break.
            if world_size() > 1 and run.stop_requested:
                raise run.stopped() from None
            raise
