"""Megatron-Bridge's recipes and loop."""

from collections.abc import Iterator

from nemotron_engines.megatron_bridge import needs
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding
from stages.pretrain.schema import PretrainConfig


class MegatronBridge(Engine[PretrainConfig[MegatronBridgeEngine]]):
    """Megatron-Bridge's recipes and loop."""

    settings = MegatronBridgeEngine
    tracks_itself = ("wandb",)

    def check(
        self, config: PretrainConfig[MegatronBridgeEngine], inputs: Inputs, machine: Machine
    ) -> Iterator[Finding]:
        """The config, and the model that it starts from."""
        return needs.problems(config, inputs)

    def needs(self, config: PretrainConfig[MegatronBridgeEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, layout, memory and disk."""
        return needs.needs(config, inputs, machine)

    def run(self, task: Task[PretrainConfig[MegatronBridgeEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.pretrain.engines.megatron_bridge.train import train

        return train(task)
