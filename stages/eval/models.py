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
    config, like = task.config, task.inputs["model"]
    if artifact is not None:
        model = load_model(artifact.path, config.engine, trusted=artifact.trusted)
    elif like is not None:  # the architecture of the model in question, with weights that learned nothing
        model = random_like(like.path, config.run.seed, config.engine)
    else:
        model = random_model(config.model, tokenizer, config.run.seed, config.engine)
    on_gpu = config.engine.device == "auto" and torch.cuda.is_available()
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
