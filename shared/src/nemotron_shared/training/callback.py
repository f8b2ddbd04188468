"""What a training loop tells: figures to metrics.jsonl and the console, checkpoints marked, stops obeyed."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.run import Run
from nemotron_shared.training import checkpoints

# Figures of the Trainer and of TRL that are kept, and what they are called in metrics.jsonl.
KEPT = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "eval_loss": "valid_loss",
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_advantage_fraction",
    "entropy": "entropy",
    "kl": "kl",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated_fraction",
    "eval_reward": "valid_reward",
}
SHOWN = ("loss", "reward", "valid_loss", "valid_reward", "lr")


class RunCallback(TrainerCallback):
    """Connects a Trainer to the run's folder.

    Args:
        tokens_at: how many tokens have been trained on after a given step, None where that is not known.
    """

    def __init__(self, run: Run, log_interval: int, keep: int, tokens_at: Callable[[int], int] | None) -> None:
        self.run = run
        self.log_interval = log_interval
        self.keep = keep
        self.tokens_at = tokens_at
        self.stopped = False
        self._began = time.monotonic()
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Cut the log back to where training continues."""
        self._began = time.monotonic()
        self._first_step = state.global_step
        if distributed.rank() == 0:
            self.run.metrics.cut_after(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop on every rank together once any rank was asked to."""
        if distributed.any_rank(self.run.stop_requested) and state.global_step < state.max_steps:
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep each step's figures; show every `log_interval`-th."""
        figures = {name: float(logs[key]) for key, name in KEPT.items() if logs and key in logs}
        figures |= {k: float(v) for k, v in (logs or {}).items() if k.startswith("rewards/") and k.endswith("/mean")}
        if not figures or distributed.rank() != 0:
            return
        timing = self._timing(state)
        self.run.metrics.append(state.global_step, **figures, **timing)
        is_validation = any(name.startswith("valid") for name in figures)
        if is_validation or state.global_step % self.log_interval == 0 or state.global_step == state.max_steps:
            self._show(state, figures, timing)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the checkpoint complete once every rank has written its part."""
        distributed.barrier()
        if distributed.rank() == 0:
            checkpoints.mark_complete(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")
            checkpoints.prune(Path(str(args.output_dir)), self.keep)

    def _timing(self, state: TrainerState) -> dict[str, float]:
        seconds = time.monotonic() - self._began
        timing: dict[str, float] = {"seconds": round(seconds, 3)}
        if self.tokens_at is not None:
            tokens = self.tokens_at(state.global_step)
            since = tokens - self.tokens_at(self._first_step)
            timing |= {"tokens": tokens, "tokens_per_second": round(since / max(seconds, 1e-9), 1)}
        return timing

    def _show(self, state: TrainerState, figures: dict[str, float], timing: dict[str, float]) -> None:
        done = state.global_step - self._first_step
        left = timing["seconds"] / max(1, done) * (state.max_steps - state.global_step)
        parts = [f"step {state.global_step}/{state.max_steps}"]
        parts += [f"{name} {figures[name]:.4g}" for name in SHOWN if name in figures]
        if "tokens_per_second" in timing:
            parts.append(f"{timing['tokens_per_second']:,.0f} tokens/s")
        parts.append(f"{_clock(left)} left")
        show_progress(self.run, "  ".join(parts), last=state.global_step >= state.max_steps)


def show_progress(run: Run, line: str, *, last: bool) -> None:
    """One line that renews itself on a terminal, one line per call elsewhere."""
    if not sys.stderr.isatty():
        run.say(line)
        return
    end = "\n" if last else ""
    print(f"\r\x1b[2K[{run.name}] {line}", end=end, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
