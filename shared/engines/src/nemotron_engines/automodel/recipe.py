"""Automodel's recipe for next-token prediction, with our metrics, stop flag and checkpoint marks.

The loop, the loss, the optimizer step, validation and the checkpoints are Automodel's own; this subclass only listens.
Import it after cpu_shim.install().
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_automodel.components.config.loader import ConfigNode  # ty: ignore[import-not-found]
from nemo_automodel.recipes.llm.train_ft import (  # ty: ignore[import-not-found]
    TrainFinetuneRecipeForNextTokenPrediction,
)

from nemotron_engines.automodel.loop import (
    LAYOUT,
    count_parameters,
    prune,
    refuse_passed_by_adapters,
    refuse_unmergeable,
    require_sane_weights,
)
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.engine.checkpoints import (
    Validation,
    latest,
    mark_complete,
    removed_when_disk_is_full,
    validation_of,
    validations,
)
from nemotron_shared.system import disk, distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import Metric
from nemotron_shared.tracking.progress import Progress
from nemotron_shared.tracking.run import Run


class StopFlag:
    """Replaces the scheduler's signal handler, so that ours stays the only one."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def signals_received(self) -> list[bool]:
        """Whether any process received a stop; collective, called at the same step by all."""
        return [distributed.any_rank(self.run.stop_requested)]


class StageRecipe(TrainFinetuneRecipeForNextTokenPrediction):
    """The recipe of one run.

    Args:
        recipe: the translated configuration.
        stage: the stage's configuration.
        tokens_at: tokens trained on after a given number of steps; None if only Automodel knows.
    """

    def __init__(
        self,
        recipe: dict[str, Any],
        stage: SupervisedConfig[AutomodelEngine],
        run: Run,
        tokens_at: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(ConfigNode(recipe))
        self.stage_config = stage
        self.stage_run = run
        self.progress = Progress(run, stage.logger.log_interval)
        self.tokens_at = tokens_at
        self.tokens = 0
        self.rate = 0.0
        self.validation: Validation | None = None

    def setup(self) -> None:
        """Build everything, then check the result."""
        super().setup()
        self.step_scheduler.sig_handler = StopFlag(self.stage_run)
        require_sane_weights(self.net)
        refuse_passed_by_adapters(self.net)
        refuse_unmergeable(self.net)
        self.rate = self.optimizer[0].param_groups[0]["lr"]
        step = self.step_scheduler.step
        logged = [entry["tokens"] for entry in self.stage_run.metrics.read() if entry["step"] <= step]
        self.tokens = logged[-1] if logged else 0
        earlier = [validation for validation in validations(self.stage_run.metrics) if validation.step <= step]
        self.validation = earlier[-1] if earlier else None
        self.progress.start(step, self.stage_config.train.train_iters, self.tokens)

    @property
    def kept(self) -> Path:
        """Folder of the checkpoints."""
        return Path(self.checkpointer.config.checkpoint_dir)

    @property
    def net(self) -> Any:
        """The model, without the wrapper of DistributedDataParallel."""
        return getattr(self.model_parts[0], "module", self.model_parts[0])

    def log_train_metrics(self, log_data: Any) -> None:
        """Keep a step's metrics.

        Raises:
            UserError: the loss is no longer finite; Automodel would continue to the last step.
        """
        super().log_train_metrics(log_data)
        step, theirs = log_data.step + 1, log_data.metrics
        self.tokens = self.tokens_at(step) if self.tokens_at else self.tokens + theirs["num_tokens_per_step"]
        metrics: dict[Metric, float] = {name: float(theirs[name]) for name in ("loss", "grad_norm")}
        metrics["lr"] = self.rate
        self._stop_unless_finite(step, metrics)
        self.progress.log(step, metrics, self.tokens)
        self.rate = theirs["lr"]  # Automodel logs the rate of the next step

    def log_val_metrics(self, val_name: str, log_data: Any, metric_logger: Any = None) -> None:
        """Keep the validation loss."""
        super().log_val_metrics(val_name, log_data, metric_logger)
        if log_data is not None:
            step = log_data.step + 1
            metrics: dict[Metric, float] = {"valid_loss": float(log_data.metrics["val_loss"])}
            self._stop_unless_finite(step, metrics)
            self.validation = validation_of(step, metrics)
            self.progress.log(step, metrics, self.tokens)

    def _stop_unless_finite(self, step: int, metrics: Mapping[Metric, float]) -> None:
        """Stop on a non-finite metric. Logs come before a step's checkpoint, so broken weights are never saved."""
        wrong = [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]
        if wrong:
            last = latest(self.kept, LAYOUT)
            kept = f"the last good checkpoint is {last}" if last else "no earlier checkpoint exists"
            raise UserError(f"step {step}: {', '.join(wrong)}; {kept}", "lower optimizer.lr, or check the data")

    def save_checkpoint(self, epoch: int, step: int, *args: Any, **kwargs: Any) -> None:
        """Mark the folder complete once every process has written its part, then delete older ones."""
        checkpoint = self.kept / f"epoch_{epoch}_step_{step}"
        # In float32: the weights (with adapters, only those) and AdamW's two moments of the trained ones.
        trained, total = count_parameters(self.net)
        needed = int(1.1 * 4 * ((trained if self.stage_config.engine.peft else total) + 2 * trained))
        distributed.on_rank_zero(lambda: disk.require_room(self.kept, needed, checkpoint.name))
        with removed_when_disk_is_full(checkpoint):
            super().save_checkpoint(epoch, step, *args, **kwargs)
            if self.checkpointer.config.is_async:  # do not mark a checkpoint that is still being written
                self.checkpointer.async_wait()
                self.checkpointer.lifecycle.complete_pending()
        distributed.barrier()
        keep, processes = self.stage_config.checkpoint, distributed.world_size()

        def mark_and_prune() -> None:
            mark_complete(checkpoint, LAYOUT, world_size=processes, validation=self.validation)
            prune(self.kept, keep=keep.most_recent_k, keep_best=keep.keep_best)

        distributed.on_rank_zero(mark_and_prune)
