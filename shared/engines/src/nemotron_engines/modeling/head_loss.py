"""Loss over a large vocabulary, only at trained tokens and without all logits in memory.

A row of 8,192 tokens and a vocabulary of 131,072 give 4 GiB of logits in float32, which the loss reads and writes
several times, mostly for prompts that are not trained. Here the head is applied to one chunk of trained tokens at a
time, and in training the chunk's gradients are computed right away.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy
from transformers import NemotronHForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from nemotron_data.formats.packed import IGNORED
from nemotron_engines.kernels.experts import mixed_type
from nemotron_engines.lora.kinds import without_adapters
from nemotron_engines.modeling.architecture import SCALES
from nemotron_engines.modeling.taken import loss_of_routers

Collator = Callable[[Any], dict[str, Tensor]]
LARGE = {"cpu": 2**22, "cuda": 2**26}
"""Smallest number of logits in a micro batch that is computed in chunks: 16 MiB in float32 on a CPU, where chunks that
stay in its caches cost no time; 256 MiB on a GPU, below which they do."""
CHUNK = {"cpu": 2**20, "cuda": 2**28}
"""Logits per chunk."""
ALIKE = 1e-3
"""Relative difference of two losses that are the same, in any type."""


def chunk_head_loss(model: Any, collate: Collator) -> Collator:
    """Change a model of transformers, with or without adapters, to compute its loss in chunks of trained tokens.

    In validation, its logits are then those of `row_losses`. Models that do more to their logits than a head without
    bias does, heads with an adapter, classes of other packages, and models whose documents `packed.keep_apart` computes
    as rows of their own stay as they are.

    Args:
        collate: makes a batch with `labels`, aligned with the logits.

    Returns:
        The collate function for the changed model.
    """
    base = without_adapters(model)
    if not _has_plain_head(base):
        return collate
    plain, head = base.forward, base.get_output_embeddings()

    def forward(head_positions: Any = None, head_targets: Any = None, **given: Any) -> Any:
        if head_positions is None:
            return plain(**given)
        count = given.pop("num_items_in_batch", None)
        given = {name: value for name, value in given.items() if name not in ("labels", "shift_labels")}
        rows = len(given["input_ids"])
        hidden = getattr(base, base.base_model_prefix)(**given).last_hidden_state
        length = hidden.shape[1]
        hidden = hidden.flatten(0, 1).index_select(0, head_positions)
        if base.training:
            total, logits = HeadLoss.apply(hidden, head.weight, head_targets), None
        else:
            each = losses(hidden, head.weight, head_targets)
            total, logits = each.sum(), row_losses(each, head_positions // length, rows)
        return CausalLMOutput(loss=total / (max(1, len(head_targets)) if count is None else count), logits=logits)

    @cache
    def is_alike() -> bool:
        return type(base) is NemotronHForCausalLM or _is_alike(base)

    def collate_with_head(rows: Any) -> dict[str, Tensor]:
        batch = collate(rows)
        large = batch["labels"].numel() * head.out_features >= LARGE.get(base.device.type, LARGE["cuda"])
        # asked with the first large batch, when the model is on the device that it computes on
        return batch | head_inputs(batch["labels"]) if large and is_alike() else batch

    base.forward = forward
    return collate_with_head


def _has_plain_head(base: Any) -> bool:
    """Whether a model is one of transformers' own that multiplies by its head and does nothing more."""
    own, head = type(base), base.get_output_embeddings()
    known = own.__module__.startswith("transformers.models.") and own.__name__.endswith("ForCausalLM")
    if not known or "forward" in vars(base) or type(head) is not nn.Linear or head.bias is not None:
        return False
    config = base.config.get_text_config()
    takes = inspect.signature(base.forward).parameters.values()
    # the Trainer tells it the tokens of a step
    counts = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes)
    return counts and all(getattr(config, name, None) in (None, 1.0) for name in SCALES)


@torch.no_grad()
def _is_alike(base: Any) -> bool:
    """Whether a changed model has the loss of a few tokens that it had before; every process computes it."""
    training, size = base.training, base.get_output_embeddings().out_features
    ids = torch.arange(8, device=base.device)[None] % size
    labels = ids.roll(1)
    given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if loss_of_routers(base.config):  # left out in training, too
        given["output_router_logits"] = False
    base.eval()
    try:
        own = float(base(**given, labels=labels, shift_labels=labels).loss)
        found = float(base(**given, **head_inputs(labels)).loss)
    except (RuntimeError, TypeError, ValueError):  # kernels may take no float32, which autocast will convert
        return False
    finally:
        base.train(training)
    return abs(found - own) <= ALIKE * abs(own)


def row_losses(each: Tensor, row: Tensor, rows: int) -> Tensor:
    """Summed loss and number of trained tokens of each row, (rows, 2) float64.

    Args:
        each: (n,) losses of trained tokens, in the rows `row` (n,).
    """
    found = each.new_zeros(rows, 2, dtype=torch.float64)
    return found.index_add_(0, row, torch.stack([each.double(), torch.ones_like(each, dtype=torch.float64)], 1))


def head_inputs(labels: Tensor) -> dict[str, Tensor]:
    """Trained positions in the flattened batch, and the ids to predict there.

    Args:
        labels: (rows, tokens), aligned with the logits; -100 is not trained.
    """
    targets = labels.flatten()
    positions = (targets != IGNORED).nonzero()[:, 0]
    return {"head_positions": positions, "head_targets": targets[positions]}


def losses(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of hidden (n, d) with the head (vocabulary, d) at targets (n,): (n,) float32, without gradients."""
    dtype, size = mixed_type(hidden.device.type) or head.dtype, _rows_of_chunk(head)
    rows, weight = hidden.to(dtype), head.to(dtype)
    found = [
        cross_entropy((part @ weight.T).float(), target, reduction="none")
        for part, target in zip(rows.split(size), targets.split(size), strict=True)
    ]
    return torch.cat(found) if found else hidden.new_zeros(0, dtype=torch.float32)


def _rows_of_chunk(head: Tensor) -> int:
    return max(1, CHUNK.get(head.device.type, CHUNK["cuda"]) // len(head))


class HeadLoss(torch.autograd.Function):
    """Summed cross entropy of hidden (n, d) with the head (vocabulary, d) at targets (n,), float32.

    Products use autocast's dtype if it is on, and the softmax float32, as without chunks.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        dtype = mixed_type(hidden.device.type) or head.dtype
        rows, weight = hidden.to(dtype), head.to(dtype)
        wanted_rows, wanted_head = ctx.needs_input_grad[:2]
        rows_gradient = torch.empty_like(rows) if wanted_rows else None
        head_gradient = torch.zeros_like(head) if wanted_head else None
        total = hidden.new_zeros((), dtype=torch.float32)
        size = _rows_of_chunk(head)
        for start in range(0, len(rows), size):
            part, target = rows[start : start + size], targets[start : start + size, None]
            logps = torch.log_softmax(part @ weight.T, dim=-1, dtype=torch.float32)
            total -= logps.gather(1, target).sum()
            slope = logps.exp_().scatter_add_(1, target, logps.new_full(target.shape, -1.0)).to(dtype)
            if rows_gradient is not None:
                torch.mm(slope, weight, out=rows_gradient[start : start + size])
            if head_gradient is not None:
                head_gradient += slope.T @ part
        ctx.save_for_backward(rows_gradient, head_gradient)
        ctx.hidden_dtype = hidden.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, head = ctx.saved_tensors
        hidden_gradient = None if rows is None else (rows * upstream).to(ctx.hidden_dtype)
        return hidden_gradient, None if head is None else head.mul_(upstream), None
