"""Stop a Trainer in the middle of a step, and save the previous step as if the current one had not started.

Weights do not change between two optimizer steps, so forward and backward passes, generation and validation can be
abandoned at any point. They do change the random generators, so their state at the end of the last step is kept, and an
interrupted validation runs again before the next step.
"""

import random
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemotron_engines.transformers.checkpoints import LAYOUT
from nemotron_shared.atomic import write_text
from nemotron_shared.runtime import checkpoints, distributed
from nemotron_shared.runtime.run import Run

VALIDATION_DUE = "VALIDATION_DUE"
"""File in a checkpoint whose step is not yet, or only partly, validated."""


@dataclass(frozen=True)
class RandomState:
    """State of the random generators that a Trainer saves."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> "RandomState":
        """The current state."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Restore this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


class InterruptibleTrainer:
    """Trainer mixin for interruptible sections and the checkpoint of the last finished step.

    The methods with an underscore override the Trainer's, which has no public hooks at these points.
    """

    stage_run: Run
    _last_state: RandomState | None = None
    may_be_given_up = True
    """Whether the weights before a pass are still those of the last finished step."""
    _validation_due = False
    _over: str | None = None

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Where to resume. After the last step, skip training: the library would make another if rows are left."""
        epochs, batches = super()._init_training_state(max_steps, *args, **kwargs)  # ty: ignore[missing-attribute]
        newest = checkpoints.latest(self.stage_run.checkpoints, LAYOUT)
        self._over = str(newest) if newest and self.state.global_step >= max_steps else None  # ty: ignore[missing-attribute]
        return (sys.maxsize, 0) if self._over else (epochs, batches)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """Finish training; a validation after the last step may still be pending."""
        if self._over is not None:
            self._load_rng_state(self._over)
        return super()._finalize_training(*args, **kwargs)  # ty: ignore[missing-attribute]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Rows of the next step; after a resume, this also skips the rows already trained on."""
        with self.stage_run.interruptible():
            return super().get_batch_samples(*args, **kwargs)  # ty: ignore[missing-attribute]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward pass of a micro batch, and in RL the generation."""
        with self.stage_run.interruptible() if self.may_be_given_up else nullcontext():
            return super().training_step(*args, **kwargs)  # ty: ignore[missing-attribute]

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of validation."""
        with self.stage_run.interruptible():
            return super().prediction_step(*args, **kwargs)  # ty: ignore[missing-attribute]

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """All batches of validation; their log comes later."""
        self._last_state, self._validation_due = RandomState.now(), True
        with self.stage_run.interruptible():
            return super().evaluation_loop(*args, **kwargs)  # ty: ignore[missing-attribute]

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)  # ty: ignore[missing-attribute]
        self._last_state, self._validation_due = RandomState.now(), False

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the generators, and run a pending validation with them, as the last thing before training resumes."""
        super()._load_rng_state(checkpoint)  # ty: ignore[missing-attribute]
        if checkpoint is not None and (Path(checkpoint) / VALIDATION_DUE).is_file():
            if distributed.rank() == 0:
                # the previous attempt may have stopped between this validation and the next step
                self.stage_run.metrics.forget_validation(checkpoints.step_of(Path(checkpoint)))
            self.evaluate()  # ty: ignore[missing-attribute]

    def save_last_step(self) -> None:
        """After an interruption, write the checkpoint of the last finished step, if there is one without a checkpoint.

        Collective: every rank must call this.
        """
        trainer: Any = self
        run, step = self.stage_run, trainer.state.global_step
        newest = distributed.on_rank_zero(lambda: checkpoints.latest(run.checkpoints, LAYOUT))
        if self._last_state is not None and step > (checkpoints.step_of(newest) if newest else 0):
            self._last_state.restore()
            folder = run.checkpoints / f"checkpoint-{step}"
            if self._validation_due and distributed.rank() == 0:
                write_text(folder / VALIDATION_DUE, "")
            trainer._save_checkpoint(trainer.model, trial=None)
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)  # flush the loggers
