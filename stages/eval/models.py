"""The models that are asked: from a folder, or with random weights."""

import os
from pathlib import Path
from typing import Any

import torch

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.modeling.build import load_model, load_tokenizer, random_like, random_model
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import ModelLoadingEngine
from nemotron_shared.runtime.task import Task
from stages.eval.schema import EvalConfig


def model_to_ask(task: Task[EvalConfig[ModelLoadingEngine]], artifact: Artifact | None) -> tuple[Any, Any, str]:
    """Model (in evaluation mode, on its device), tokenizer and the name of the device.

    Args:
        artifact: None for random weights.
    """
    folder = tokenizer_folder(task, artifact)
    tokenizer = load_tokenizer(folder)
    model = _random_weights(task, tokenizer) if artifact is None else load_model(artifact.path, task.config.engine)
    on_gpu = task.config.engine.device == "auto" and torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu"
    return model.to(device).eval(), tokenizer, device


def tokenizer_folder(task: Task[EvalConfig], artifact: Artifact | None) -> Path:
    """Where the model's tokenizer lies; that of random weights is written when it is not there yet."""
    known = artifact or task.inputs["model"]
    if known is not None:
        return known.path
    folder = task.run.directory / "tokenizer"
    provide_tokenizer(task.config.model.tokenizer, folder)
    return folder


def _random_weights(task: Task[EvalConfig[ModelLoadingEngine]], tokenizer: Any) -> Any:
    """The architecture of the model in question, or of the config, with weights that learned nothing."""
    like, config = task.inputs["model"], task.config
    if like is not None:
        return random_like(like.path, config.run.seed, config.engine)
    return random_model(config.model, tokenizer, config.run.seed, config.engine)
