"""Pretrain with Megatron-Bridge: recipes for clusters of GPUs, and the tiny model on a CPU.

torchrun stages/pretrain/train.py -c tiny engine=megatron_bridge
"""

from nemotron_shared.megatron.loop import train_with_megatron
from nemotron_shared.modeling.build import require_same_tokenizer
from nemotron_shared.runtime.step import Outcome, Task


def train(task: Task) -> Outcome:
    """Train on the token shards and their blend, from `run.model` or from random weights."""
    base = task.inputs["model"]
    if base is not None:
        require_same_tokenizer(task.input("data").path / "tokenizer", base.path)
    return train_with_megatron(task)
