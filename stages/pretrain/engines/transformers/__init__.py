"""transformers' NemotronH and Trainer, in this process."""

from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.pretrain.schema import PretrainConfig


class Transformers(Engine[PretrainConfig[TransformersEngine]]):
    """transformers' NemotronH and Trainer, in this process."""

    settings = TransformersEngine

    def run(self, task: Task[PretrainConfig[TransformersEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.pretrain.engines.transformers.train import train

        return train(task)
