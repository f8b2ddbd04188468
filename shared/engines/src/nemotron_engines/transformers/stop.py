"""Stop a Trainer in the middle of a step, and keep the step before it as if nothing had been begun after it.

Between two optimizer steps no weight changes, so forward and backward passes, generation and validation are given up
wherever they are. What they do change is the state of the random generators: that of the last step's end is kept, and
a validation that was cut off is due again, before the next step.
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
"""A file in a checkpoint: its step was validated only in part, or not yet."""


@dataclass(frozen=True)
class RandomState:
    """The random generators that a Trainer saves, at one moment."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> "RandomState":
        """As they are."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


class InterruptibleTrainer:
    """Mixed into a Trainer: what may be given up, and the checkpoint of the last finished step.

    The methods with an underscore are the Trainer's own, which has no public ones at these places.
    """

    stage_run: Run
    _last_state: RandomState | None = None
    may_be_given_up = True
    """Whether the weights are still those of the last finished step, before each pass."""
    _validation_due = False
    _over: str | None = None

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Where training goes on. After the last step nowhere: the library would make one more where rows are left."""
        epochs, batches = super()._init_training_state(max_steps, *args, **kwargs)  # ty: ignore[missing-attribute]
        newest = checkpoints.latest(self.stage_run.checkpoints, LAYOUT)
        self._over = str(newest) if newest and self.state.global_step >= max_steps else None  # ty: ignore[missing-attribute]
        return (sys.maxsize, 0) if self._over else (epochs, batches)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """The end; a validation after the last step may still be due."""
        if self._over is not None:
            self._load_rng_state(self._over)
        return super()._finalize_training(*args, **kwargs)  # ty: ignore[missing-attribute]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Rows of the next step; after a resume also the many that have been trained on."""
        with self.stage_run.interruptible():
            return super().get_batch_samples(*args, **kwargs)  # ty: ignore[missing-attribute]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward of one micro batch, and in RL the generation."""
        with self.stage_run.interruptible() if self.may_be_given_up else nullcontext():
            return super().training_step(*args, **kwargs)  # ty: ignore[missing-attribute]

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of validation."""
        with self.stage_run.interruptible():
            return super().prediction_step(*args, **kwargs)  # ty: ignore[missing-attribute]

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """All batches of validation; what is logged of them comes after."""
        self._last_state, self._validation_due = RandomState.now(), True
        with self.stage_run.interruptible():
            return super().evaluation_loop(*args, **kwargs)  # ty: ignore[missing-attribute]

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)  # ty: ignore[missing-attribute]
        self._last_state, self._validation_due = RandomState.now(), False

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The last thing before training goes on: what is due is done with the generators of that moment."""
        super()._load_rng_state(checkpoint)  # ty: ignore[missing-attribute]
        if checkpoint is not None and (Path(checkpoint) / VALIDATION_DUE).is_file():
            if distributed.rank() == 0:
                # the attempt before this one may have been stopped between this validation and the next step
                self.stage_run.metrics.forget_validation(checkpoints.step_of(Path(checkpoint)))
            self.evaluate()  # ty: ignore[missing-attribute]

    def save_last_step(self) -> None:
        """After an interruption: write the checkpoint of the last finished step, unless it is there or there is none.

        Every rank must call this together.
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
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)  # loggers write their rest
