"""Connect Bridge's training loop to a run: metrics, stopping, and export at the end.

    callback = RunCallback(task, at_end=lambda model: export_model(model, ...))
    pretrain(container, forward_step, callbacks=[callback])

Import this after `prepare()` (environment.py).
"""

from collections.abc import Callable
from typing import Any

from megatron.bridge.training.callbacks import Callback, CallbackContext  # ty: ignore[import-not-found]

from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from nemotron_shared.tracking.metrics import Metric
from nemotron_shared.tracking.progress import Progress

LOSS = "lm loss"


class RunCallback(Callback):
    """Connects Bridge's loop to the run's folder.

    Args:
        tokens_per_step: tokens in a global batch.
        at_end: called with the model, on every rank, once the last step is done and saved.
    """

    def __init__(
        self,
        task: Task[SupervisedConfig[MegatronBridgeEngine]],
        tokens_per_step: int,
        at_end: Callable[[list[Any]], None],
    ) -> None:
        self.run = task.run
        self.tokens_per_step = tokens_per_step
        self.at_end = at_end
        self.stopped = False
        self.last_step = 0
        self._progress = Progress(task.run, task.config.logger.log_interval)
        self._lr = 0.0
        self._validated: int | None = None

    def on_train_start(self, context: CallbackContext) -> None:
        """Truncate the log to the step where training continues."""
        step = self.last_step = context.state.train_state.step
        if step:
            self.run.goes_on_from(step)
        self._progress.start(step, context.state.cfg.train.train_iters, step * self.tokens_per_step)

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Record this step's learning rate; after the step, Bridge already has the next one's."""
        self._lr = max(float(group["lr"]) for group in context.optimizer.param_groups if "lr" in group)

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Log the step; end the loop on all ranks together once any rank received a stop."""
        state = context.state
        step = self.last_step = state.train_state.step + 1
        if distributed.any_rank(self.run.stop_requested) and step < state.cfg.train.train_iters:
            self.stopped = True
            state.cfg.train.train_iters = step  # makes the loop save and end here; our own config keeps the real end
            state.train_state.do_valid = state.train_state.do_test = False
        metrics: dict[Metric, float] = {"lr": self._lr}
        if LOSS in (context.loss_dict or {}):
            metrics["loss"] = float(context.loss_dict[LOSS])
        if context.grad_norm is not None:
            metrics["grad_norm"] = float(context.grad_norm)
        self._progress.log(step, metrics, step * self.tokens_per_step)

    def on_eval_end(self, context: CallbackContext) -> None:
        """Log the validation loss once per step, although Bridge validates the last step twice."""
        step = context.state.train_state.step
        if step == self._validated or LOSS not in (context.total_loss_dict or {}):
            return
        self._validated = step
        metrics: dict[Metric, float] = {"valid_loss": float(context.total_loss_dict[LOSS])}
        self._progress.log(step, metrics, step * self.tokens_per_step)

    def on_train_end(self, context: CallbackContext) -> None:
        """Pass on the trained model."""
        if not self.stopped:
            self.at_end(context.model)
