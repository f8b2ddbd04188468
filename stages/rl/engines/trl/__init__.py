"""TRL's GRPOTrainer, in this process."""

from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.rl.schema import RLConfig, TRLEngine


class TRL(Engine[RLConfig[TRLEngine]]):
    """TRL's GRPOTrainer, in this process."""

    settings = TRLEngine

    def run(self, task: Task[RLConfig[TRLEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.rl.engines.trl.train import train

        return train(task)
