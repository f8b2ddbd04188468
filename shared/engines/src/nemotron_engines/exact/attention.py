"""Causal attention in blocks of keys that are added up in their order."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nemotron_engines.exact.products import linear


def projected(mixer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (documents, length, groups, heads of a group, d), keys and values (documents, length, groups, d).

    In float32, whatever the weights are.
    """
    shape = (*x.shape[:-1], -1, mixer.head_dim)
    q, k, v = (linear(proj, x).float().view(shape) for proj in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    return q.unflatten(2, (k.shape[2], -1)), k, v


def blocks_of(tensor: Tensor, block: int) -> Tensor:
    """Keys or values (documents, length, groups, d) as (blocks, documents, groups, block, d)."""
    return tensor.unflatten(1, (-1, block)).permute(1, 0, 3, 2, 4).contiguous()


def attend(queries: Tensor, first: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Attention of one tile of queries over the blocks of keys.

    Args:
        queries: (documents * groups, heads * block, d): all heads of a group, each with `block` positions.
        first: position of the first query, for all or (documents * groups) of them.
        keys, values: (blocks, documents, groups, block, d) from position 0 on.
    """
    count, block = len(keys), keys.shape[3]
    steps = torch.arange(block, device=queries.device)
    behind = steps + block * torch.arange(count, device=queries.device).view(-1, 1, 1, 1, 1)
    hidden = behind > first.view(-1, 1, 1, 1) + steps[:, None]  # (blocks, 1 or items, 1, block, block)
    many = queries.expand(count, *queries.shape).flatten(0, 1)
    rows = (count, len(queries), -1, block)
    scores = torch.bmm(many, keys.flatten(0, 2).mT).view(*rows, block).mul(scaling).masked_fill(hidden, -torch.inf)
    powers = (scores - scores.detach().amax((0, -1), keepdim=True)).exp()
    seen = torch.bmm(powers.view(len(many), -1, block), values.flatten(0, 2)).view(*rows, queries.shape[-1])
    return added(seen) / added(powers.sum(-1, keepdim=True))


def added(parts: Iterable[Tensor]) -> Tensor:
    """Their sum, one after the other."""
    first, *others = parts
    for part in others:
        first = first + part
    return first


def attention(mixer: Any, x: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """A `NemotronHAttention` over documents x (documents, length, width); also their keys and values, in blocks."""
    q, k, v = projected(mixer, x)
    documents, length, groups, heads, size = q.shape
    keys, values = blocks_of(k, block), blocks_of(v, block)
    tiles = q.unflatten(1, (-1, block)).permute(1, 0, 3, 4, 2, 5).reshape(-1, documents * groups, heads * block, size)
    found = []
    for number, tile in enumerate(tiles):
        first = torch.tensor(number * block, device=x.device)
        found.append(attend(tile, first, keys[: number + 1], values[: number + 1], mixer.scaling))
    out = torch.stack(found).view(-1, documents, groups, heads, block, size).permute(1, 0, 4, 2, 3, 5)
    return linear(mixer.o_proj, out.reshape(documents, length, -1).to(x.dtype)), keys, values


def attention_step(mixer: Any, x: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The next token x (sequences, width) of each at position `at` (sequences); writes its key and value.

    Args:
        keys, values: (blocks, sequences, groups, block, d); no position lies beyond the last block.
    """
    q, k, v = (part.squeeze(1) for part in projected(mixer, x[:, None]))
    every, block = torch.arange(len(x), device=x.device), keys.shape[3]
    number, inside = at // block, at % block
    keys[number, every, :, inside], values[number, every, :, inside] = k, v
    tile = q.new_zeros(*q.shape[:3], block, q.shape[3])
    tile[every, :, :, inside] = q
    used = int(number.max()) + 1
    first = (at - inside).repeat_interleave(q.shape[1])
    out = attend(tile.flatten(2, 3).flatten(0, 1), first, keys[:used], values[:used], mixer.scaling)
    return linear(mixer.o_proj, out.view(tile.shape)[every, :, :, inside].flatten(1).to(x.dtype))
