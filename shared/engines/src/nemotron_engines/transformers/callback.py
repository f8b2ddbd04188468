"""What a training loop tells: figures to metrics.jsonl and the console, checkpoints marked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback

from nemotron_shared.runtime import checkpoints, distributed
from nemotron_shared.runtime.progress import Progress
from nemotron_shared.runtime.run import Run

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


class RunCallback(TrainerCallback):
    """Connects a Trainer to the run's folder.

    Args:
        tokens_at: how many tokens have been trained on after a given step, None where that is not known.
    """

    def __init__(self, run: Run, log_interval: int, keep: int, tokens_at: Callable[[int], int] | None) -> None:
        self.run = run
        self.keep = keep
        self.tokens_at = tokens_at
        self._progress = Progress(run, log_interval)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Cut the log back to where training continues."""
        self._progress.start(state.global_step, state.max_steps, self._tokens(state))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep each step's figures."""
        figures = {name: float(logs[key]) for key, name in KEPT.items() if logs and key in logs}
        figures |= {k: float(v) for k, v in (logs or {}).items() if k.startswith("rewards/") and k.endswith("/mean")}
        if figures:
            self._progress.log(state.global_step, figures, self._tokens(state))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the checkpoint complete once every rank has written its part."""
        distributed.barrier()
        if distributed.rank() == 0:
            checkpoints.mark_complete(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")
            checkpoints.prune(Path(str(args.output_dir)), self.keep)

    def _tokens(self, state: TrainerState) -> int | None:
        return self.tokens_at(state.global_step) if self.tokens_at else None


class TensorBoardFigures(TensorBoardCallback):
    """TensorBoard without the figures that TRL leaves empty: each would cost a warning."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Pass on what is there."""
        known = {name: value for name, value in (logs or {}).items() if value is not None}
        super().on_log(args, state, control, logs=known, **kwargs)
