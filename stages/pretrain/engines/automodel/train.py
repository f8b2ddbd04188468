"""Pretrain with NeMo Automodel, from random weights or on from a model, on rows cut from the shuffled documents."""

from nemotron_data.formats.bin_idx import read_blend
from nemotron_engines.automodel.loop import train_with_automodel
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.engine.spec import Outcome, Task
from stages.pretrain.schema import PretrainConfig


def train(task: Task[PretrainConfig[AutomodelEngine]]) -> Outcome:
    """Train on every token."""
    config, data = task.config, task.input("data")
    blend = data.path / "blend.json"
    valid = blend if read_blend(blend).get("valid") else None
    if valid is None:
        task.run.say("the valid split is empty: no validation")
    tokens = config.train.global_batch_size * config.train.seq_length
    return train_with_automodel(task, "documents", blend, valid, lambda step: step * tokens)
