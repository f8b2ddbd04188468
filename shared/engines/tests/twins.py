"""Small models of each distinct shape among the families' twins, with weights large enough that a mistake shows."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_engines.modeling.build import ONLY_MADE, load_tokenizer, nemotron_config, random_like, save_model
from nemotron_shared.families import architecture, families

WEIGHTS = {"initializer_range": 0.2}


def twins() -> list[str]:
    """The first family of each distinct tiny shape: several families share one, and measuring it once is enough."""
    first: dict[str, str] = {}
    for family in sorted(families(), key=lambda name: (name != "super3", "like" in families()[name].architecture)):
        first.setdefault(json.dumps(architecture(f"{family}_tiny"), sort_keys=True), family)
    return [*first.values()]


TWINS = twins()


def twin_model(family: str, folder: Path) -> PreTrainedModel:
    """A twin in evaluation mode; its config and tokenizer are saved in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(folder)
    fields = load_architecture(f"{family}_tiny", WEIGHTS)
    nemotron_config(fields, load_tokenizer(folder)).save_pretrained(folder)
    model = random_like(folder, 7, ONLY_MADE).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.bias"):  # zero at first; a real one shows leaks from padding
            torch.nn.init.uniform_(parameter, -1, 1)
    return model


def twin_folder(family: str, folder: Path) -> PreTrainedModel:
    """A twin, saved in `folder` as a model with its tokenizer."""
    tokenizer = folder.with_name(f"{folder.name}-tokenizer")
    model = twin_model(family, tokenizer)
    save_model(model, tokenizer, folder)
    return model


def tokens(rows: int = 2, length: int = 31, seed: int = 0) -> torch.Tensor:
    """Random token ids, none of them a control token."""
    return torch.randint(10, 250, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    """Logits of all tokens, computed without a cache."""
    return model(input_ids=ids, use_cache=False, **more).logits


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference, relative to the second."""
    one, other = one.detach(), other.detach()
    return float((one.double() - other.double()).norm() / other.double().norm())
