"""The starting model of a training: from `run.model` or random weights, with adapters if they are trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from nemotron_engines.modeling.build import (
    load_model,
    load_tokenizer,
    random_config,
    random_model,
    read_config,
    shell_of,
)
from nemotron_shared.config.schema import LocalEngine
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.runtime.spec import Task

if TYPE_CHECKING:
    from peft import PeftModel


def starting_model(task: Task[TrainingConfig[LocalEngine]]) -> "PreTrainedModel | PeftModel":
    """The model to train with transformers."""
    config = task.config
    model = starting_weights(task, task.input("data").path / "tokenizer")
    if config.engine.peft is None:
        return model
    from nemotron_engines.lora.adapt import adapted

    return adapted(model, config.engine.peft, config.run.seed)


def starting_weights(task: Task[Any], tokenizer: Path) -> PreTrainedModel:
    """The model without adapters: in float32, or frozen in the compute dtype.

    Args:
        tokenizer: folder of the tokenizer that random weights are made for.
    """
    config: TrainingConfig[LocalEngine] = task.config
    engine = config.engine
    if engine.strategy == "ddp":
        return _whole(task, tokenizer)
    from nemotron_engines.modeling.sharded import spread

    return spread(lambda: _whole(task, tokenizer), lambda: _shell(task, tokenizer), engine.dtype, engine.device)


def _whole(task: Task[Any], tokenizer: Path) -> PreTrainedModel:
    config: TrainingConfig[LocalEngine] = task.config
    base, engine = task.inputs["model"], config.engine
    frozen = engine.peft is not None and engine.dtype == "bfloat16"
    dtype = torch.bfloat16 if frozen else torch.float32
    if base is not None:
        return load_model(base.path, engine, trusted=base.trusted, dtype=dtype)
    model: Any = random_model(config.model, load_tokenizer(tokenizer), config.run.seed, engine)
    return model.to(dtype)


def _shell(task: Task[Any], tokenizer: Path) -> PreTrainedModel:
    config: TrainingConfig[LocalEngine] = task.config
    if (base := task.inputs["model"]) is not None:
        return shell_of(read_config(base.path, trusted=base.trusted), config.engine, trusted=base.trusted)
    return shell_of(random_config(config.model, load_tokenizer(tokenizer)), config.engine)
