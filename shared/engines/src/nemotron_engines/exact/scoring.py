"""Log-probabilities of given tokens, as training computes them, in rows of any layout."""

from collections.abc import Callable, MutableSequence, Sequence
from functools import wraps
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHForCausalLM

from nemotron_engines.exact.layers import TILE, TILED_EXPERTS, Routes, attention, linear, mlp, moe
from nemotron_engines.exact.mamba import mamba
from nemotron_engines.kernels.experts import note_real_rows
from nemotron_engines.kernels.mamba_install import is_older
from nemotron_engines.kernels.mamba_scan import tile_for


class Documents(NamedTuple):
    """Token sequences, one per row."""

    ids: Tensor  # (documents, length in whole blocks) int64, padded on the right
    lengths: Tensor  # (documents) int64; a last document of length 0 pads the tiles


def documents(sequences: Sequence[Tensor], block: int) -> Documents:
    """Left-aligned rows in whole blocks, plus an empty row if they would not fill whole tiles."""
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
    """Block length at which the scan is fastest."""
    config: Any = model.config
    return max(16, tile_for(config.mamba_head_dim, config.ssm_state_size, config.chunk_size))


def hidden_states(model: PreTrainedModel, ids: Tensor, routes: Routes | None = None) -> Tensor:
    """Final hidden states (documents, length, width) for ids (documents, length in whole blocks)."""
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
    """Rows (n, ...), padded with zeros to whole tiles."""
    return torch.cat([rows, rows.new_zeros(-len(rows) % TILE, *rows.shape[1:])])


def log_probabilities(model: PreTrainedModel, hidden: Tensor, temperature: float) -> Tensor:
    """(rows, vocabulary) float32 for hidden states (rows, width), rows in whole tiles."""
    logits = linear(model.get_output_embeddings(), hidden).float()
    return (logits / temperature).log_softmax(-1)


class Scores(NamedTuple):
    """Results for each wanted token, in the shape of the ids, with zeros elsewhere."""

    logps: Tensor
    entropy: Tensor  # of the token's distribution, without a gradient
    experts: Tensor | None  # int64: the `code` of the experts before it


def score(model: PreTrainedModel, ids: Tensor, place: Tensor, wanted: Tensor, temperature: float) -> Scores:
    """Log-probabilities of the wanted tokens, each given the ones before it in its own document.

    Args:
        ids: (rows, length) int64, padded on any side, or packed.
        place: (rows, length) int64: position of each token in its document; -1 for padding. A document starts at 0.
        wanted: (rows, length) bool; the first token of a document is ignored, because nothing comes before it.
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
    """One number for a token's experts in all layers: (tokens, layers, k) int64, ascending -> (tokens)."""
    digits = chosen.flatten(1)
    factors = torch.tensor([pow(1_000_003, n, 1 << 31) for n in range(1, digits.shape[1] + 1)], device=chosen.device)
    return (digits + 1) @ factors


def places_of_mask(mask: Tensor) -> Tensor:
    """Positions in rows with one document each, padded where the mask (rows, length) is 0."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)


def places_of_starts(seq_start_id: list[list[int]], length: int) -> Tensor:
    """Positions in packed rows, from the starts of each row's documents."""
    rows = [[torch.arange(b - a) for a, b in pairwise([*starts, length])] for starts in seq_start_id]
    return torch.stack([torch.cat(row) for row in rows])


def score_exactly(model: PreTrainedModel, temperature: float, experts: MutableSequence[Tensor]) -> None:
    """Compute TRL's call `model(..., labels=labels, fused_lm_head=True)` by `score` from now on.

    Args:
        experts: each call appends its expert codes.
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


def why_not(model: PreTrainedModel) -> str | None:
    """Why exact computation is impossible for a model; None if it is possible, and then the model is set up for it."""
    kinds = {(parameter.device.type, parameter.dtype) for parameter in model.parameters()}
    config = model.config
    reasons = {
        f"{type(model).__name__} is not a NemotronH": not isinstance(model, NemotronHForCausalLM),
        "the installed transformers is too old": is_older(),
        "the model is on a GPU": any(device != "cpu" for device, _ in kinds),
        "its weights are not float32": any(dtype != torch.float32 for _, dtype in kinds),
        "its weights are sharded": any(hasattr(parameter, "full_tensor") for parameter in model.parameters()),
        "torch uses more than one thread; set run.threads=1": torch.get_num_threads() > 1,
        "activations are recomputed": getattr(model, "is_activation_checkpointing", False),
        "its Mamba layers do not use silu": getattr(config, "mamba_hidden_act", "silu") != "silu",
    }
    if (reason := next((text for text, is_so in reasons.items() if is_so), None)) is None:
        model.set_experts_implementation(TILED_EXPERTS)
    return reason
