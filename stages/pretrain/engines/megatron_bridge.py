"""Pretrain with Megatron-Bridge: recipes for clusters of GPUs, and the tiny model on a CPU.

torchrun stages/pretrain/train.py -c tiny engine=megatron_bridge
"""

from nemotron_shared.megatron.loop import train_with_megatron
from nemotron_shared.runtime.step import Outcome, Task
from nemotron_shared.training.start import checked_base


def train(task: Task) -> Outcome:
    """Train on the token shards and their blend, from `run.model` or from random weights."""
    checked_base(task)
    return train_with_megatron(task)
