"""What a training starts from: the model of `run.model`, or random weights."""

from pathlib import Path

from transformers import PreTrainedModel

from nemotron_engines.modeling.build import load_model, load_tokenizer, random_model, require_same_tokenizer
from nemotron_shared.config.schema import LocalEngine
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.runtime.task import Task


def checked_base(task: Task[TrainingConfig]) -> Path | None:
    """Folder of the model to start from; None for random weights.

    Raises:
        UserError: the data was made with another tokenizer than the model's.
    """
    base = task.inputs["model"]
    if base is None:
        return None
    require_same_tokenizer(task.input("data").path / "tokenizer", base.path)
    return base.path


def starting_model(task: Task[TrainingConfig[LocalEngine]]) -> PreTrainedModel:
    """The model to train with transformers, float32."""
    config, base = task.config, checked_base(task)
    if base is not None:
        return load_model(base, config.engine)
    tokenizer = load_tokenizer(task.input("data").path / "tokenizer")
    return random_model(config.model, tokenizer, config.run.seed, config.engine)
