"""One model through several implementations: our kernels, transformers' own, and step by step in float64."""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.models.nemotron_h import modeling_nemotron_h

from nemotron_engines.kernels.mamba_install import REFERENCE_KERNELS, STOCK
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.tiny import distance, logits_of, tiny_model, tokens

TOLERANCE = 1e-5
LENGTH = 31
OTHERS = "Automodel and megatron-core need environments of their own, and are not among these figures"


@contextmanager
def stock_kernels() -> Generator[None]:
    """transformers' own functions in the place of ours."""
    ours = {name: getattr(modeling_nemotron_h, name) for name in REFERENCE_KERNELS}
    try:
        for name in REFERENCE_KERNELS:
            setattr(modeling_nemotron_h, name, STOCK[name])
        yield
    finally:
        for name, function in ours.items():
            setattr(modeling_nemotron_h, name, function)


def logits(family: str, folder: Path) -> Measured:
    """Relative distances of logits; what needs an environment of its own is named."""
    model, ids = tiny_model(family, folder), tokens(2, LENGTH)
    ours = logits_of(model, ids)
    with stock_kernels():
        stock = logits_of(model, ids)
    figures = {
        "our kernels to transformers": distance(ours, stock),
        "our kernels to the float64 recurrence": distance(ours, recurrence(copy.deepcopy(model).double(), ids)),
    }
    return Measured(figures, TOLERANCE, [OTHERS])


@torch.no_grad()
def recurrence(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits one token after the other, each from the state that the one before it left."""
    found, cache = [], None
    for step in range(ids.shape[1]):
        given = {} if cache is None else {"past_key_values": cache}
        output = model(input_ids=ids[:, step : step + 1], use_cache=True, **given)
        cache = output.past_key_values
        found.append(output.logits)
    return torch.cat(found, 1)


def gradients(family: str, folder: Path) -> Measured:
    """The largest relative distance of a parameter's gradient."""
    model, ids = tiny_model(family, folder).train(), tokens(2, LENGTH)
    ours = _gradients(model, ids)
    with stock_kernels():
        stock = _gradients(model, ids)
    # the rounding of gradients that are truly zero counts as that of the largest one
    noise = 1e-2 * max(one.norm() for one in stock.values())
    worst = max(float((ours[name] - one).norm() / max(one.norm(), noise)) for name, one in stock.items())
    return Measured({"largest relative distance": worst}, TOLERANCE)


def _gradients(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: one for name, one in zip(names, found, strict=True) if one is not None}
