"""How far a training loop is: every step's figures to metrics.jsonl, and some of them to the console.

progress = Progress(run, log_interval=10)
progress.start(step=0, last=900, tokens=0)
progress.log(10, {"loss": 3.91, "lr": 0.003}, tokens=10240)
# [pretrain] step 10/900  loss 3.91  lr 0.003  21,010 tokens/s  0:43 left

It imports no library that trains, so that every engine can use it.
"""

import time
from collections.abc import Mapping

from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.console import clock, renew, say
from nemotron_shared.runtime.metrics import Figures
from nemotron_shared.runtime.run import Run

SHOWN = ("loss", "reward", "valid_loss", "valid_reward", "lr")


class Progress:
    """Figures, speed and time left of one run; rank 0 writes.

    Args:
        log_interval: steps between two lines on the console.
    """

    def __init__(self, run: Run, log_interval: int) -> None:
        self.run = run
        self.log_interval = log_interval
        self._began = time.monotonic()
        self._first_step = self._last_step = 0
        self._first_tokens = 0

    def start(self, step: int, last: int, tokens: int | None) -> None:
        """Begin to count, with the log cut back to `step`, where training starts or continues.

        Args:
            last: the step at which training will be done.
            tokens: trained on so far, None where that is not known.
        """
        self._began = time.monotonic()
        self._first_step, self._last_step = step, last
        self._first_tokens = tokens or 0
        if distributed.rank() == 0:
            self.run.metrics.cut_after(step)

    def log(self, step: int, figures: Figures, tokens: int | None) -> None:
        """Keep the figures of a step; show those of every `log_interval`-th, of the last, and of a validation."""
        if distributed.rank() != 0:
            return
        timing = self._timing(tokens)
        self.run.metrics.append(step, **figures, **timing)
        is_validation = any(name.startswith("valid") for name in figures)
        if is_validation or step % self.log_interval == 0 or step == self._last_step:
            self._show(step, figures, timing)

    def _timing(self, tokens: int | None) -> dict[str, float]:
        seconds = time.monotonic() - self._began
        timing: dict[str, float] = {"seconds": round(seconds, 3)}
        if tokens is not None:
            per_second = (tokens - self._first_tokens) / max(seconds, 1e-9)
            timing |= {"tokens": tokens, "tokens_per_second": round(per_second, 1)}
        return timing

    def _show(self, step: int, figures: Figures, timing: Mapping[str, float]) -> None:
        left = timing["seconds"] / max(1, step - self._first_step) * (self._last_step - step)
        parts = [f"step {step}/{self._last_step}"]
        parts += [f"{name} {figures[name]:.4g}" for name in SHOWN if name in figures]
        if "tokens_per_second" in timing:
            parts.append(f"{timing['tokens_per_second']:,.0f} tokens/s")
        parts.append(f"{clock(left)} left")
        show = renew if step < self._last_step else say
        show(f"[{self.run.name}] {'  '.join(parts)}")
