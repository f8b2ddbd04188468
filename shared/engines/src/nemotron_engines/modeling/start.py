"""What a training starts from: the model of `run.model`, or random weights."""

from transformers import PreTrainedModel

from nemotron_engines.modeling.build import load_model, load_tokenizer, random_model
from nemotron_shared.config.schema import LocalEngine
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.runtime.task import Task


def starting_model(task: Task[TrainingConfig[LocalEngine]]) -> PreTrainedModel:
    """The model to train with transformers, float32."""
    config, base = task.config, task.inputs["model"]
    if base is not None:
        return load_model(base.path, config.engine, trusted=base.trusted)
    tokenizer = load_tokenizer(task.input("data").path / "tokenizer")
    return random_model(config.model, tokenizer, config.run.seed, config.engine)
