"""The Trainer's checkpoints: verified contents, size, and stops in the middle of a step.

No weight changes between two optimizer steps, so forward and backward passes, generation and validation can be
abandoned anywhere. They do change the random generators: we keep their state at the end of the last step, and run an
interrupted validation again before the next step.
"""

import random
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.checkpoints import Layout, Mark, step_of
from nemotron_shared.models.weights import ADAPTER_WEIGHTS
from nemotron_shared.system import disk, distributed
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "sharded/.metadata"
OPTIMIZER = "optimizer.pt"
STATE = ("scheduler.pt", "trainer_state.json")


def missing_state(checkpoint: Path, mark: Mark) -> str | None:
    """A missing part that a resumed run would silently reset: the Trainer continues even without optimizer state."""
    processes = mark.world_size
    # one file of weights, or an index with all its files, or adapters alone, or each process's shards
    if SHARDS in mark.files:
        state = {SHARDS, *(f"sharded/__{rank}_0.distcp" for rank in range(processes))}
    elif INDEX in mark.files:
        state = {*read_json(checkpoint / INDEX)["weight_map"].values(), OPTIMIZER}
    else:
        state = {ADAPTER_WEIGHTS if ADAPTER_WEIGHTS in mark.files else WEIGHTS, OPTIMIZER}
    # the Trainer's names; a single process has no number
    states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    needed = [*sorted(state), *STATE, *states]
    absent = [name for name in needed if name not in mark.files]
    if absent:
        return f"{', '.join(absent)} missing"
    step = read_json(checkpoint / "trainer_state.json").get("global_step")
    return None if step == mark.step else f"trainer_state.json is from step {step}"


LAYOUT = Layout(step_of, missing_state)


def checkpoint_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of a checkpoint: weights and optimizer tensors, plus a tenth for small files.

    With frozen weights, only the trained ones are saved.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = len(trained) < len(list(model.parameters()))
    tensors = trained if frozen else [*trained, *model.buffers()]
    tensors += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return int(1.1 * sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def save_or_explain(checkpoint: Path, needed: int, save: Callable[[], None]) -> None:
    """Let every process write its part of a checkpoint; a full disk raises one error and leaves no folder behind.

    Raises:
        UserError: the disk is full, before or while writing. Earlier checkpoints are not affected.
    """
    distributed.on_rank_zero(lambda: disk.require_room(checkpoint.parent, needed, checkpoint.name))
    full: UserError | None = None
    try:
        save()
    except Exception as error:
        full = disk.full_disk_error(error, checkpoint)
        if full is None:
            raise
    # Barrier: no process may mark a checkpoint that another failed to write, or write into one being removed.
    if distributed.any_rank(full is not None):
        if distributed.rank() == 0:
            shutil.rmtree(checkpoint, ignore_errors=True)
        raise full or SystemExit(2)


# Stop a Trainer in the middle of a step, as if nothing had begun after the step before it.


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
