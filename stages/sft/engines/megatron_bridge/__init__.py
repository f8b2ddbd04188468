"""Megatron-Bridge's recipes and loop."""

from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.sft.schema import SFTConfig


class MegatronBridge(Engine[SFTConfig[MegatronBridgeEngine]]):
    """Megatron-Bridge's recipes and loop."""

    settings = MegatronBridgeEngine

    def run(self, task: Task[SFTConfig[MegatronBridgeEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.sft.engines.megatron_bridge.train import train

        return train(task)
