"""A step's working folder, and its console lines.

The folder is named after what the work is: its inputs, and the settings that identify the result. The same command
therefore finds the folder of an interrupted run and resumes it, even if settings of how it is done have changed.
"""

import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from nemotron_shared.system.console import say
from nemotron_shared.system.distributed import any_rank, barrier
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import locked, record_of
from nemotron_shared.system.process import rank, world_size
from nemotron_shared.system.stop import Interrupted, Stopped, stop_signals
from nemotron_shared.tracking.completions import FILE as COMPLETIONS
from nemotron_shared.tracking.completions import CompletionsLog
from nemotron_shared.tracking.metrics import FILE as METRICS
from nemotron_shared.tracking.metrics import MetricsLog
from nemotron_shared.tracking.segments import continued, other_processes, read_segments, write_segments

if TYPE_CHECKING:
    from nemotron_shared.artifacts import Artifact

LOCK_NAME = "lock"
WHAT = "what.json"
"""The record of what is made."""


class Run:
    """Folder, metrics and stop flag of one step.

    Folders: `checkpoints/` is what a rerun resumes from; `output/` becomes the artifact. `fingerprint` identifies the
    result and the code that makes it.

    Attributes:
        began: start of this attempt, by the monotonic clock.
        mirror_result: passes the published artifact and its inputs on to the experiment trackers.
        stop_requested: a signal has arrived.
        stop_at_once: a signal ends the work anywhere, by raising `Interrupted`.
    """

    def __init__(self, directory: Path, name: str, fingerprint: str = "") -> None:
        self.directory = directory
        self.name = name
        self.fingerprint = fingerprint
        self.checkpoints = directory / "checkpoints"
        self.output = directory / "output"
        self.metrics = MetricsLog(directory / METRICS)
        self.completions = CompletionsLog(directory / COMPLETIONS)
        self.began = time.monotonic()
        self.mirror_result: Callable[[Artifact, Sequence[Artifact]], None] = _tell_nobody
        self.stop_requested = False
        self.stop_at_once = True

    def say(self, line: str) -> None:
        """Print a line for people, from rank 0 only."""
        say(f"[{self.name}] {line}")

    def goes_on_from(self, step: int) -> None:
        """Report and record that this attempt resumes an earlier one after `step`."""
        self.say(f"continuing from step {step}")
        if rank() == 0 and (segments := read_segments(self.directory)):
            if was := other_processes(segments, step):
                now = segments[-1].machine["processes"]
                self.say(f"{was} processes before, {now} now: the result has other bytes than an undisturbed run")
            write_segments(self.directory, continued(segments, step))

    def stop_if_requested(self) -> None:
        """Stop if a signal asked for it; call this between units of work that are saved."""
        if self.stop_requested:
            raise self.stopped()

    def stopped(self) -> Stopped:
        """The exception to raise when stopping at a signal's request."""
        return Stopped(f"[{self.name}] stopped", "run the same command again to continue")

    def require_all_steps(self, done: int, asked: int) -> None:
        """Check that all steps are done, and do not trust the library's report.

        Raises:
            UserError: training ended early without being asked to.
        """
        if done < asked:
            raise UserError(
                f"training ended unexpectedly after step {done} of {asked}; nothing is published",
                f"check its library's output above, or in {self.directory}; the same command continues from the last "
                "checkpoint",
            )

    @contextmanager
    def watched(self) -> Generator[None]:
        """Work that saves its state when stopped, and therefore checks `stop_requested` itself."""
        before, self.stop_at_once = self.stop_at_once, False
        try:
            yield
        finally:
            self.stop_at_once = before

    @contextmanager
    def interruptible(self, *, apart: bool = False) -> Generator[None]:
        """A section of watched work that a signal may interrupt, because everything before it can still be saved.

        A single process leaves it immediately. Ranks could leave others waiting inside, so they agree before the
        section starts and then complete it.

        Args:
            apart: ranks do not wait for each other here, so each leaves immediately, and they agree at the end.

        Raises:
            Interrupted: any rank received a signal.
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
        """Remove everything except the lock."""
        lock = self.directory / LOCK_NAME
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in (lock, record_of(lock)):
                path.unlink()

    def fresh_output(self) -> Path:
        """Create an empty output folder, deleting anything an earlier attempt left there."""
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir(parents=True)
        return self.output


def _tell_nobody(artifact: "Artifact", inputs: "Sequence[Artifact]") -> None:
    """A result without experiment trackers."""


@contextmanager
def locked_run(directory: Path, name: str, fingerprint: str) -> Generator[Run]:
    """Lock and enter a run's folder, stopping on SIGTERM or Ctrl-C.

    Raises:
        UserError: another process is working in the same folder.
        Stopped: a signal arrived.
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
            # A rank waiting for a stopped one sees its connection break.
            if world_size() > 1 and run.stop_requested:
                raise run.stopped() from None
            raise


def is_recorded(config: Path) -> bool:
    """Whether a config was recorded by a run: it then states every value, including defaults."""
    return (config.parent / WHAT).is_file()
