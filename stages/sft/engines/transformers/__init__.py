"""transformers' NemotronH and Trainer, in this process."""

from nemotron_engines.checks import local_needs
from nemotron_engines.estimate.training import with_micro_batch, within_budget
from nemotron_engines.rules import TRAINING
from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from stages.sft.schema import SFTConfig


class Transformers(Engine[SFTConfig[TransformersEngine]]):
    """transformers' NemotronH and Trainer, in this process."""

    settings = TransformersEngine
    libraries = "stages.sft.engines.transformers.train"
    begins_with = ("transformers.trainer", "peft")
    small_models = "nemotron_engines.modeling.cut"
    rules = TRAINING
    unneeded = ("boto3", "datasets", "scipy")

    def needs(self, config: SFTConfig[TransformersEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, memory and disk."""
        return within_budget(local_needs(config, inputs, machine), config, inputs, machine)

    def run(self, task: Task[SFTConfig[TransformersEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.sft.engines.transformers.train import train

        return train(with_micro_batch(task))
