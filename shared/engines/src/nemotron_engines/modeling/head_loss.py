"""Loss over a large vocabulary, only at trained tokens and without all logits in memory.

A row of 8,192 tokens and a vocabulary of 131,072 give 4 GiB of logits in float32, which the loss reads and writes
several times, mostly for prompts that are not trained. Here the head is applied to one chunk of trained tokens at a
time, and the chunk's gradients are computed right away.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import NemotronHForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from nemotron_data.formats.packed import IGNORED
from nemotron_engines.kernels.experts import mixed_type
from nemotron_engines.lora.kinds import without_adapters

Collator = Callable[[Any], dict[str, Tensor]]
LARGE = 2**26
"""Smallest number of logits in a micro batch for which this pays off: 256 MiB in float32."""
CHUNK = 2**28
"""Logits per chunk."""


def chunk_head_loss(model: Any, collate: Collator) -> Collator:
    """Change a NemotronH model, with or without adapters, to compute its training loss in chunks of trained tokens.

    Models of other classes, and heads with an adapter, stay as they are.

    Args:
        collate: makes a batch with `labels`, aligned with the logits.

    Returns:
        The collate function for the changed model.
    """
    base = without_adapters(model)
    if type(base) is not NemotronHForCausalLM or type(base.lm_head) is not nn.Linear:
        return collate
    plain, vocabulary = base.forward, base.lm_head.out_features

    def forward(head_positions: Any = None, head_targets: Any = None, **given: Any) -> Any:
        if head_positions is None or not base.training:
            return plain(**given)
        count = given.pop("num_items_in_batch", None)
        given = {name: value for name, value in given.items() if name not in ("labels", "shift_labels")}
        hidden = base.model(**given).last_hidden_state.flatten(0, 1).index_select(0, head_positions)
        total = HeadLoss.apply(hidden, base.lm_head.weight, head_targets)
        return CausalLMOutput(loss=total / (max(1, len(head_targets)) if count is None else count))

    def collate_with_head(rows: Any) -> dict[str, Tensor]:
        batch = collate(rows)
        large = batch["labels"].numel() * vocabulary >= LARGE
        return batch | head_inputs(batch["labels"]) if large else batch

    base.forward = forward
    return collate_with_head


def head_inputs(labels: Tensor) -> dict[str, Tensor]:
    """Trained positions in the flattened batch, and the ids to predict there.

    Args:
        labels: (rows, tokens), aligned with the logits; -100 is not trained.
    """
    targets = labels.flatten()
    positions = (targets != IGNORED).nonzero()[:, 0]
    return {"head_positions": positions, "head_targets": targets[positions]}


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
        size = max(1, CHUNK // len(head))
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
