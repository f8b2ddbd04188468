"""SamplingTrainer with our schedule, resuming and stopping."""

from typing import Any

from nemotron_engines.transformers.trainer import StageTrainer
from stages.rl.engines.trl.sampling import SamplingTrainer


class ScheduledGRPOTrainer(StageTrainer, SamplingTrainer):
    """A GRPOTrainer with our schedule, resuming and stopping."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Allow a stop during generation: it takes most of a step, and only sharded models communicate in it."""
        with self.stage_run.interruptible(apart=self.stage_config.engine.strategy == "ddp"):
            return super()._generate_single_turn(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: manifests record lineage, and TRL's card would query its trackers."""
