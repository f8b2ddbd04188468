"""NeMo Automodel's recipe for next-token prediction."""

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.sft.schema import SFTConfig


class Automodel(Engine[SFTConfig[AutomodelEngine]]):
    """NeMo Automodel's recipe for next-token prediction."""

    settings = AutomodelEngine

    def run(self, task: Task[SFTConfig[AutomodelEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.sft.engines.automodel.train import train

        return train(task)
