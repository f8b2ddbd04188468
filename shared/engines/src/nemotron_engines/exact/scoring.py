"""Log-probabilities of tokens that are there already, as training computes them, in rows of any layout."""

from collections.abc import Callable, MutableSequence
from functools import wraps
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from nemotron_engines.exact.experts import Routes
from nemotron_engines.exact.forward import block_of, documents, hidden_states, log_probabilities, whole_tiles
from nemotron_engines.real_rows import note_real_rows


class Scores(NamedTuple):
    """About each wanted token; both have the shape of the ids, with zeros elsewhere."""

    logps: Tensor
    entropy: Tensor  # of the distribution that it was drawn from, without a gradient
    experts: Tensor | None  # int64: the `code` of the experts behind it


def score(model: PreTrainedModel, ids: Tensor, place: Tensor, wanted: Tensor, temperature: float) -> Scores:
    """Log-probabilities of the wanted tokens, each given the ones before it in its own document.

    Args:
        ids: (rows, length) int64, padded on any side, or packed.
        place: (rows, length) int64: the position of a token in its document; -1 for padding. A new document begins
            where it is 0.
        wanted: (rows, length) bool; a document's first token has nothing before it, and is left out.
    """
    real = place >= 0
    document = ((place == 0) & real).flatten().cumsum(0).view(place.shape) - 1
    lengths = torch.bincount(document[real])
    filled, filled_to = documents([*ids[real].split(lengths.tolist())], block_of(model))
    note_real_rows(torch.arange(filled.shape[1], device=ids.device) < filled_to[:, None])
    rows, columns = (wanted & (place > 0)).nonzero(as_tuple=True)
    owner, before = document[rows, columns], place[rows, columns] - 1
    routes = Routes(owner * filled.shape[1] + before)
    hidden = hidden_states(model, filled, routes)[owner, before]
    all_logps = log_probabilities(model, whole_tiles(hidden), temperature)[: len(rows)]
    logps = all_logps.gather(1, ids[rows, columns][:, None])[:, 0]
    with torch.no_grad():
        spread = -(all_logps.exp() * all_logps).sum(-1)

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(ids.shape).index_put((rows, columns), values)

    chosen = routes.take()
    return Scores(placed(logps), placed(spread), None if chosen is None else placed(code(chosen)))


def code(chosen: Tensor) -> Tensor:
    """One number for the experts of a token in all layers: (tokens, layers, k) int64 in rising order -> (tokens)."""
    digits = chosen.flatten(1)
    factors = torch.tensor([pow(1_000_003, n, 1 << 31) for n in range(1, digits.shape[1] + 1)], device=chosen.device)
    return (digits + 1) @ factors


def places_of_mask(mask: Tensor) -> Tensor:
    """Positions in rows of one document each, padded where the mask (rows, length) is 0."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)


def places_of_starts(seq_start_id: list[list[int]], length: int) -> Tensor:
    """Positions in packed rows, from the starts of each row's documents."""
    rows = [[torch.arange(b - a) for a, b in pairwise([*starts, length])] for starts in seq_start_id]
    return torch.stack([torch.cat(row) for row in rows])


def score_exactly(model: PreTrainedModel, temperature: float, experts: MutableSequence[Tensor]) -> None:
    """From now on, `model(..., labels=labels, fused_lm_head=True)`, as TRL calls it, is computed by `score`.

    Args:
        experts: each call adds what it finds of them.
    """
    stock: Callable[..., Any] = model.forward

    @wraps(stock)
    def forward(*args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return stock(*args, **kwargs)
        place, wanted = places_of_mask(kwargs["attention_mask"]), kwargs["labels"] != -100
        found = score(model, kwargs["input_ids"], place, wanted, temperature)
        experts.extend(() if found.experts is None else [found.experts])
        return SimpleNamespace(log_probs=found.logps, entropy=found.entropy, aux_loss=None)

    model.forward = forward
