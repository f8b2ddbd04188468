"""SamplingTrainer with our schedule, and our way to resume and to stop."""

from typing import Any

from nemotron_engines.transformers.trainer import StageTrainer
from stages.rl.engines.trl.sampling import SamplingTrainer


class ScheduledGRPOTrainer(StageTrainer, SamplingTrainer):
    """A GRPOTrainer with our schedule and our way to resume and to stop."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Generation is the long part of a step, and no rank waits for another in it, unless for shards of weights."""
        with self.stage_run.interruptible(apart=self.stage_config.engine.strategy == "ddp"):
            return super()._generate_single_turn(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: a manifest says what a model was made from, and TRL's card asks the trackers that it imports."""
