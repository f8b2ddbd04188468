"""TRL's GRPOTrainer, in this process."""

from collections.abc import Iterator

from nemotron_engines.checks import local_needs, own_packages
from nemotron_shared.runtime.engine import Engine, Inputs
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs, Problem
from nemotron_shared.runtime.spec import Outcome, Task
from stages.rl.schema import RLConfig, TRLEngine


class TRL(Engine[RLConfig[TRLEngine]]):
    """TRL's GRPOTrainer, in this process."""

    settings = TRLEngine
    libraries = "stages.rl.engines.trl.train"
    unneeded = ("boto3", "scipy")

    def check(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Iterator[Problem]:
        """Updates within a step are made of gradients that each process has whole."""
        if config.grpo.updates_per_step > 1 and config.engine.strategy == "fsdp2":
            what = f"{config.grpo.updates_per_step} updates in a step, and shards of a model take one"
            yield Problem(what, "set engine.strategy=ddp, or grpo.updates_per_step=1", "grpo.updates_per_step")

    def needs(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, memory and disk."""
        return local_needs(config, inputs, machine, own_packages("nemotron-rl"))

    def run(self, task: Task[RLConfig[TRLEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.rl.engines.trl.train import train

        return train(task)
