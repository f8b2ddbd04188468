"""NeMo Automodel's recipe for next-token prediction."""

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.pretrain.schema import PretrainConfig


class Automodel(Engine[PretrainConfig[AutomodelEngine]]):
    """NeMo Automodel's recipe for next-token prediction."""

    settings = AutomodelEngine

    def run(self, task: Task[PretrainConfig[AutomodelEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.pretrain.engines.automodel.train import train

        return train(task)
