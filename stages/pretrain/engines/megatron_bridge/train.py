"""Pretrain with Megatron-Bridge: recipes for clusters of GPUs, and the tiny model on a CPU.

torchrun stages/pretrain/train.py -c tiny engine=megatron_bridge
"""

from nemotron_engines.megatron_bridge.loop import train_with_megatron
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.engine.spec import Outcome, Task
from stages.pretrain.schema import PretrainConfig


def train(task: Task[PretrainConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the token shards and their blend, from `run.model` or from random weights."""
    return train_with_megatron(task)
