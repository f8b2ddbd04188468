"""Load the models to evaluate: from a folder, or with random weights."""

import os
from pathlib import Path
from typing import Any

import torch

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.modeling.build import load_model, load_tokenizer, random_like, random_model
from nemotron_engines.modeling.generation import alone
from nemotron_engines.modeling.sizes import ANOTHER_MODEL, NOT_THE_FILE, first_line
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import ModelLoadingEngine
from nemotron_shared.engine.spec import Task
from nemotron_shared.system.errors import UserError
from stages.eval.schema import EvalConfig

TRIED = 16
"""Length of the trial input, in tokens, that checks a model before its evaluation."""


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
    elif like is not None:  # the architecture of the evaluated model, untrained
        model = random_like(like.path, config.run.seed, config.engine)
    else:
        model = random_model(config.model, tokenizer, config.run.seed, config.engine)
    on_gpu = config.engine.device == "auto" and torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu"
    model = model.to(device).eval()
    model.generation_config = alone(model)  # evaluation.* decides, and not the model's file
    if known := artifact or like:
        require_answers(model, known.reference)
    return model, tokenizer, device


@torch.inference_mode()
def require_answers(model: Any, label: str) -> None:
    """Refuse a model that fails or gives NaN, before hundreds of its answers count as wrong.

    Raises:
        UserError: naming the model.
    """
    ids = torch.arange(TRIED, device=model.device) % model.config.get_text_config().vocab_size
    try:
        finite = bool(torch.isfinite(model(input_ids=ids[None], use_cache=False).logits.amax(-1)).all())
        what = "its logits are not finite: its weights are damaged, or overflow their dtype"
    except NOT_THE_FILE:
        raise
    except Exception as error:  # most faults of a config only show in the forward pass
        finite, what = False, f"{type(error).__name__}: {first_line(error)}"
    if not finite:
        raise UserError(f"{label}: cannot answer: {what}", ANOTHER_MODEL)


def tokenizer_folder(task: Task[EvalConfig], artifact: Artifact | None) -> Path:
    """Folder of the model's tokenizer; for random weights it is written on first use."""
    known = artifact or task.inputs["model"]
    if known is not None:
        return known.path
    folder = task.run.directory / "tokenizer"
    provide_tokenizer(task.config.model.tokenizer, folder)
    return folder
