"""NeMo Automodel's recipe for next-token prediction."""

from collections.abc import Iterator

from nemotron_engines.automodel import needs as automodel
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding
from stages.sft.schema import SFTConfig


class Automodel(Engine[SFTConfig[AutomodelEngine]]):
    """NeMo Automodel's recipe for next-token prediction."""

    settings = AutomodelEngine
    tracks_itself = ("wandb",)

    def check(self, config: SFTConfig[AutomodelEngine], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """The config, and the model that it starts from."""
        return automodel.problems(config, inputs, machine)

    def needs(self, config: SFTConfig[AutomodelEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, layout, memory and disk."""
        return automodel.needs(config, inputs, machine)

    def run(self, task: Task[SFTConfig[AutomodelEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.sft.engines.automodel.train import train

        return train(task)
