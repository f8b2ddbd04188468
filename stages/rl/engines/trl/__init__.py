"""TRL's GRPOTrainer, in this process."""

from collections.abc import Iterator

from nemotron_engines.checks import local_needs, own_packages
from nemotron_shared.runtime.engine import Engine, Inputs
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs, Problem
from nemotron_shared.runtime.spec import Outcome, Task
from stages.rl.rewards import ENVIRONMENT
from stages.rl.schema import RLConfig, TRLEngine


class TRL(Engine[RLConfig[TRLEngine]]):
    """TRL's GRPOTrainer, in this process."""

    settings = TRLEngine
    libraries = "stages.rl.engines.trl.train"
    unneeded = ("boto3", "scipy")

    def check(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Iterator[Problem]:
        """Refuse what a sharded model cannot do: several updates per step, and turns of environments."""
        environments, names = config.engine.environments, [reward.name for reward in config.rewards]
        if environments is None and ENVIRONMENT in names:
            yield Problem("the reward 'environment' comes from environments", "give engine.environments", "rewards")
        if environments is not None and ENVIRONMENT not in names:
            remedy = "rewards=[{name: environment, weight: 1.0}]; others beside it judge the last answer"
            yield Problem("the environments' reward is not among the rewards", remedy, "rewards")
        if environments is not None and config.engine.strategy == "fsdp2":
            what = "processes have different numbers of turns, and shards of a model take the same"
            yield Problem(what, "set engine.strategy=ddp", "engine.environments")
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
