"""A mixture of experts for a GPU: sort the tokens by expert, multiply all runs in one grouped matrix product.

transformers' own `grouped_mm` uses the dtype of the experts' weights, which autocast does not change: in mixed
precision it multiplies in float32, expert by expert, and waits for the GPU to get each expert's token count. This one
multiplies in autocast's dtype and never waits. It needs experts like Nemotron's, without gate and bias. Select it by
name: `from_config(..., experts_implementation=register_grouped_experts())`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "grouped_mixed_precision"


def register_grouped_experts() -> str:
    """Register the implementation with transformers; returns its name."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, grouped_experts_forward)
    return NAME


def mixed_type(device: str) -> torch.dtype | None:
    """Autocast's dtype on a kind of device; None if autocast is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def grouped_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of a `NemotronHExperts` module: hidden_states (tokens, d), the other two (tokens, k).

    Raises:
        ValueError: the experts have a gate or a bias.
    """
    if self.has_gate or self.has_bias:
        raise ValueError(f"experts_implementation='{NAME}' computes down(activation(up(x))) only")
    device, (tokens, chosen) = hidden_states.device.type, top_k_index.shape
    dtype = mixed_type(device) or self.up_proj.dtype
    expert, order = torch.sort(top_k_index.flatten(), stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=expert.device), right=True).int()
    with torch.autocast(device, enabled=False):  # autocast would square in float32, for a product in bfloat16
        rows = Dispatch.apply(hidden_states.to(dtype), order, place, chosen)
        inner = self.act_fn(F.grouped_mm(rows, self.up_proj.to(dtype).mT, offs=ends))
        result = F.grouped_mm(inner, self.down_proj.to(dtype).mT, offs=ends)
    by_token = Reorder.apply(result, place, order).view(tokens, chosen, -1)
    return (by_token * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)


class Dispatch(torch.autograd.Function):
    """Repeat each row for its k experts, in the order of the experts: (tokens, d) -> (tokens * k, d).

    Both directions gather instead of adding to the same row from many threads, so gradients are the same in every
    run.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor, chosen: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.chosen = chosen
        return x.index_select(0, order // chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        return gradient.index_select(0, place).unflatten(0, (-1, ctx.chosen)).sum(1), None, None, None


class Reorder(torch.autograd.Function):
    """Rows in another order; `back` is the inverse of `order`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        return gradient.index_select(0, back), None, None
