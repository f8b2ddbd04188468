"""Fine-tune with Megatron-Bridge: the recipes of Nemotron 3 on GPUs, all weights or adapters, on packed rows.

torchrun --nproc-per-node=8 stages/sft/train.py -c nano3 run.model=/models/nemotron-nano

A CPU is refused before this starts, because only Transformer Engine's attention kernel keeps the conversations of a
packed row apart.
"""

from nemotron_engines.megatron_bridge.loop import train_with_megatron
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.engine.spec import Outcome, Task
from stages.sft.schema import SFTConfig


def train(task: Task[SFTConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the assistant's tokens of the packed rows; adapters are merged into the exported weights."""
    return train_with_megatron(task)
