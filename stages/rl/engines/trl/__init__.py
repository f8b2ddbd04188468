"""TRL's GRPOTrainer, in this process."""

from nemotron_engines.checks import local_needs, own_packages
from nemotron_shared.runtime.engine import Engine, Inputs
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs
from nemotron_shared.runtime.task import Outcome, Task
from stages.rl.schema import RLConfig, TRLEngine


class TRL(Engine[RLConfig[TRLEngine]]):
    """TRL's GRPOTrainer, in this process."""

    settings = TRLEngine
    libraries = "stages.rl.engines.trl.train"
    unneeded = ("boto3", "scipy")

    def needs(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, memory and disk."""
        return local_needs(config, inputs, machine, own_packages("nemotron-rl"))

    def run(self, task: Task[RLConfig[TRLEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.rl.engines.trl.train import train

        return train(task)
