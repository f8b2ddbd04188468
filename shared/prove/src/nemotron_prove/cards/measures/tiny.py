"""The tiny model of a family, with weights large enough that a mistake would show."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_engines.modeling.build import ONLY_MADE, load_tokenizer, nemotron_config, random_like, save_model

WEIGHTS = {"initializer_range": 0.2}


def tiny_model(family: str, folder: Path) -> PreTrainedModel:
    """In evaluation mode; `folder` gets its tokenizer."""
    save_tokenizer(folder)
    fields = load_architecture(f"{family}_tiny", WEIGHTS)
    nemotron_config(fields, load_tokenizer(folder)).save_pretrained(folder)
    model = random_like(folder, 7, ONLY_MADE).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.bias"):  # zero at first; a real one shows what leaks from padding
            torch.nn.init.uniform_(parameter, -1, 1)
    return model


def tiny_folder(family: str, folder: Path) -> PreTrainedModel:
    """The model, and its files in `folder`."""
    tokenizer = folder.with_name(f"{folder.name}-tokenizer")
    tokenizer.mkdir(parents=True)
    model = tiny_model(family, tokenizer)
    folder.mkdir()
    save_model(model, tokenizer, folder)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random token ids that are no control tokens."""
    return torch.randint(10, 250, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    """Of all tokens, without a cache."""
    return model(input_ids=ids, use_cache=False, **more).logits


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far the first is from the second, in parts of its length."""
    return float((one.double() - other.double()).norm() / other.double().norm())
