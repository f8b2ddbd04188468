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
        """Refuse several updates per step with sharded models, because updates within a step need whole gradients."""
        if config.grpo.updates_per_step > 1 and config.engine.strategy == "fsdp2":
            what = f"a sharded model takes 1 update per step, not {config.grpo.updates_per_step}"
            yield Problem(what, "set engine.strategy=ddp, or grpo.updates_per_step=1", "grpo.updates_per_step")

    def needs(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, memory and disk."""
        return local_needs(config, inputs, machine, own_packages("nemotron-rl"))

    def run(self, task: Task[RLConfig[TRLEngine]]) -> Outcome:
        """Train; imports the libraries."""
        from stages.rl.engines.trl.train import train

        return train(task)
