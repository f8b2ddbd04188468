"""Fine-tune with Megatron-Bridge: the recipes of Nemotron 3 on GPUs, all weights or adapters, on packed rows.

torchrun --nproc-per-node=8 stages/sft/train.py -c nano3 run.model=/models/nemotron-nano

A CPU is refused before this begins: what keeps the conversations of a packed row apart is an attention kernel of
Transformer Engine, for which there is no other.
"""

from nemotron_engines.megatron_bridge.loop import train_with_megatron
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_shared.runtime.spec import Outcome, Task
from stages.sft.schema import SFTConfig


def train(task: Task[SFTConfig[MegatronBridgeEngine]]) -> Outcome:
    """Train on the assistant's tokens of the packed rows; adapters are merged into the exported weights."""
    return train_with_megatron(task)
