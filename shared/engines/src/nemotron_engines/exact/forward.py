"""The whole model over documents, and the log-probabilities of their tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from nemotron_engines.exact.attention import attention
from nemotron_engines.exact.experts import Routes, mlp, moe
from nemotron_engines.exact.mamba import mamba
from nemotron_engines.exact.products import TILE, linear
from nemotron_engines.kernels.mamba_scan import tile_for


class Documents(NamedTuple):
    """Token sequences in rows of their own."""

    ids: Tensor  # (documents, length in whole blocks) int64, filled up on the right
    lengths: Tensor  # (documents) int64; a last document of length 0 fills up the tiles


def documents(sequences: Sequence[Tensor], block: int) -> Documents:
    """Rows from the left, in whole blocks; a further empty one where the rows would be no whole tiles."""
    lengths = [len(ids) for ids in sequences]
    length = -(-max(lengths) // block) * block
    count = len(lengths)
    while count * length % TILE:
        count += 1
    ids = torch.zeros(count, length, dtype=torch.int64, device=sequences[0].device)
    for row, sequence in zip(ids, sequences, strict=False):
        row[: len(sequence)] = sequence
    return Documents(ids, torch.tensor(lengths + [0] * (count - len(lengths)), device=ids.device))


def block_of(model: PreTrainedModel) -> int:
    """Positions of a block: what the scan is fastest with."""
    config: Any = model.config
    return max(16, tile_for(config.mamba_head_dim, config.ssm_state_size, config.chunk_size))


def hidden_states(model: PreTrainedModel, ids: Tensor, routes: Routes | None = None) -> Tensor:
    """What the head is given (documents, length, width) for ids (documents, length in whole blocks)."""
    body: Any = model.base_model
    block = block_of(model)
    x = body.embeddings(ids)
    for layer in body.layers:
        normal = layer.norm(x)
        match layer.block_type:
            case "linear_attention":
                new = mamba(layer.mixer, normal, block)
            case "full_attention":
                new, _, _ = attention(layer.mixer, normal, block)
            case "moe":
                new = moe(layer.mixer, normal.flatten(0, 1), routes).view(x.shape)
            case _:
                new = mlp(layer.mixer, normal)
        x = x + new
    return body.norm_f(x)


def whole_tiles(rows: Tensor) -> Tensor:
    """The rows (n, ...), and as many zeros as fill up the last tile."""
    return torch.cat([rows, rows.new_zeros(-len(rows) % TILE, *rows.shape[1:])])


def log_probabilities(model: PreTrainedModel, hidden: Tensor, temperature: float) -> Tensor:
    """(rows, vocabulary) float32 for hidden states (rows, width), rows in whole tiles."""
    logits = linear(model.get_output_embeddings(), hidden).float()
    return (logits / temperature).log_softmax(-1)
