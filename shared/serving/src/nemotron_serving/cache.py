"""Join the caches of several sequences into a batch, and take them apart again.

Attention keys are padded on the left, so that the newest token of each sequence is in the last column; the mask hides
the padding. Mamba states have no length, and are only stacked.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

JOINED = (DummyLayer, DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def can_be_joined(cache: DynamicCache) -> bool:
    """Whether every layer is of a kind that `join` supports; sliding windows, for example, are not."""
    return all(type(layer) in JOINED for layer in cache.layers)


def join(first: DynamicCache, second: DynamicCache) -> DynamicCache:
    """Append the rows of `second` to `first`."""
    pairs: list[tuple[Any, Any]] = list(zip(first.layers, second.layers, strict=True))
    for one, other in pairs:
        for states in ("conv_states", "recurrent_states"):
            here, there = getattr(one, states, {}), getattr(other, states, {})
            for index in here:
                if here[index] is not None:
                    here[index] = torch.cat([here[index], there[index]])
        if getattr(one, "keys", None) is not None:
            one.keys = torch.cat(_as_wide(one.keys, other.keys))
            one.values = torch.cat(_as_wide(one.values, other.values))
    return first


def _as_wide(one: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
    """Pad both (rows, heads, width, channels) on the left to the same width."""
    width = max(one.shape[-2], other.shape[-2])
    return [F.pad(each, (0, 0, width - each.shape[-2], 0)) for each in (one, other)]


def keep(cache: DynamicCache, rows: list[int], width: int) -> None:
    """Keep only these rows, and the last `width` columns of the keys."""
    layers: list[Any] = cache.layers
    for layer in layers:
        for states in ("conv_states", "recurrent_states"):
            found: dict[int, Any] = getattr(layer, states, {})
            for index, state in found.items():
                if state is not None:
                    found[index] = state[rows]
        if getattr(layer, "keys", None) is not None:
            layer.keys = layer.keys[rows, :, layer.keys.shape[-2] - width :]
            layer.values = layer.values[rows, :, layer.values.shape[-2] - width :]
