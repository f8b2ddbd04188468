"""Megatron-Bridge's recipes and loop."""

from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.pretrain.schema import PretrainConfig


class MegatronBridge(Engine[PretrainConfig[MegatronBridgeEngine]]):
    """Megatron-Bridge's recipes and loop."""

    settings = MegatronBridgeEngine

    def run(self, task: Task[PretrainConfig[MegatronBridgeEngine]]) -> Outcome:
        """Train, with the libraries that this needs."""
        from stages.pretrain.engines.megatron_bridge.train import train

        return train(task)
