"""transformers' NemotronH and Trainer, in this process."""

from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.sft.schema import SFTConfig


class Transformers(Engine[SFTConfig[TransformersEngine]]):
    """transformers' NemotronH and Trainer, in this process."""

    settings = TransformersEngine

    def run(self, task: Task[SFTConfig[TransformersEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.sft.engines.transformers.train import train

        return train(task)
