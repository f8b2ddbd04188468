"""Progress of a training loop: every step's metrics to metrics.jsonl, and some of them to the console.

progress = Progress(run, log_interval=10)
progress.start(step=0, last=900, tokens=0)
progress.log(10, {"loss": 3.91, "lr": 0.003}, tokens=10240)
# [pretrain] step 10/900  loss 3.91  lr 0.003  21,010 tokens/s  0:43 left

Imports no training library, so every engine can use it. `heartbeat` prints a line every few seconds of silence, so a
slow run does not look like a hang:

[super3-rl-model] importing libraries, 0:10
[super3-rl-model] at work on step 3/45, 0:05
"""

import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from nemotron_shared.machine.library_output import LibraryLog
from nemotron_shared.machine.machine import memory_held
from nemotron_shared.system import distributed
from nemotron_shared.system.console import BAR, bar, clock, doing, renew, room, work_at_hand
from nemotron_shared.tracking.metrics import Figures
from nemotron_shared.tracking.run import Run

SHOWN = ("loss", "reward", "valid_loss", "valid_reward", "lr")
QUIET_SECONDS, TERMINAL_SECONDS = 4.0, 0.2
"""Shorter than the heartbeat's pause, so it does not announce a step about to be logged."""
_SHOWN = "".join(rf"(?:  {name} (?P<{name}>\S+))?" for name in SHOWN)
LOG = LibraryLog(
    "a stage",
    {"] step ": rf"\] step (?P<step>\d+)/(?P<steps>\d+){_SHOWN}(?:  (?P<tokens_per_second>[\d,]+) tokens/s)?  "},
)
"""Parses the lines printed here, from the output of a job."""


class Progress:
    """Metrics, speed and time left of one run; written by rank 0.

    Args:
        log_interval: steps between two lines on the console.
    """

    def __init__(self, run: Run, log_interval: int) -> None:
        self.run = run
        self.log_interval = log_interval
        self._began = self._shown = time.monotonic()
        self._first_step = self._last_step = 0
        self._first_tokens = 0

    def start(self, step: int, last: int, tokens: int | None) -> None:
        """Start counting, and cut the logs back to `step`, when training starts or resumes.

        Args:
            last: the final step.
            tokens: trained on so far, None if unknown.
        """
        self._began = self._shown = time.monotonic()
        self._first_step, self._last_step = step, last
        self._first_tokens = tokens or 0
        doing(f"at work on step {step + 1}/{last}")
        if distributed.rank() == 0:
            self.run.metrics.cut_after(step)
            self.run.completions.cut_after(step)

    def log(self, step: int, metrics: Figures, tokens: int | None) -> None:
        """Log the metrics of a step.

        Shown on the console are every `log_interval`-th step, the last one, validations, and any step after
        `QUIET_SECONDS` without a line; on a terminal, a bar moves with nearly every step.
        """
        if distributed.rank() != 0:
            return
        now = time.monotonic()
        seconds = now - self._began
        timing: dict[str, float] = {"seconds": round(seconds, 3), "memory_gb": round(memory_held(), 3)}
        words = [f"step {step}/{self._last_step}"]
        words += [f"{name} {metrics[name]:.4g}" for name in SHOWN if name in metrics]
        if tokens is not None:
            speed = (tokens - self._first_tokens) / max(seconds, 1e-9)
            timing |= {"tokens": tokens, "tokens_per_second": round(speed, 1)}
            words.append(f"{speed:,.0f} tokens/s")
        self.run.metrics.append(step, **metrics, **timing)
        quiet = TERMINAL_SECONDS if sys.stderr.isatty() else QUIET_SECONDS
        is_due = step % self.log_interval == 0 or now - self._shown >= quiet
        if is_due or step == self._last_step or any(name.startswith("valid") for name in metrics):
            left = seconds / max(1, step - self._first_step) * (self._last_step - step)
            words.append(f"{clock(left)} left")
            if step >= self._last_step or not sys.stderr.isatty():
                self.run.say("  ".join(words))
            else:
                renew(fitted(self.run.name, step / self._last_step, words, room()))
            self._shown = now
        doing(
            f"at work on step {min(step + 1, self._last_step)}/{self._last_step}"
            if step < self._last_step
            else "finishing"
        )


SHORT_BAR = 8


def fitted(name: str, share: float, words: Sequence[str], width: int) -> str:
    """The line of a step with a bar, in `width` characters if it can be.

    It loses the learning rate, then some of its bar, then the run's name, the bar, and last the speed.

    Args:
        share: of the steps that are done, from 0 to 1.
    """
    shorter = [word for word in words if not word.startswith("lr ")]
    for prefix, shown, least in (
        (f"[{name}] ", words, BAR),
        (f"[{name}] ", shorter, SHORT_BAR),
        ("", shorter, SHORT_BAR),
    ):
        rest = "  ".join(["", *shown])
        if (left := width - len(prefix) - len(rest)) >= least:
            return f"{prefix}{bar(share, min(BAR, left))}{rest}"
    without_bar = "  ".join(shorter)
    return without_bar if len(without_bar) <= width else "  ".join(w for w in shorter if not w.endswith("tokens/s"))


SECONDS = 5.0
LATER, LATER_SECONDS = 600.0, 60.0
"""After ten minutes, print less often to keep logs short; on a terminal each line replaces the last."""
LOOKS = 0.25
YOUNG_SECONDS = 1.0
"""Show no time for shorter activities: steps are being made, only their lines are far apart."""


@contextmanager
def heartbeat(name: str) -> Generator[None]:
    """Print what is being done, on rank 0, after `SECONDS` without any other line."""
    if distributed.rank() != 0:
        yield
        return
    work_at_hand().said = time.monotonic()  # a forked process inherits its parent's value
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(name, ended), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _beat(name: str, ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(LOOKS):
        now, work = time.monotonic(), work_at_hand()
        pause = LATER_SECONDS if now - began > LATER and not sys.stderr.isatty() else SECONDS
        if now - work.said >= pause:
            since = now - work.since
            renew(f"[{name}] {work.what}{f', {clock(since)}' if since >= YOUNG_SECONDS else ''}")
