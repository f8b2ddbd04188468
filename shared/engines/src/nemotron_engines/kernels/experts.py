"""Mixtures of experts for transformers: one for the CPU, one for a GPU in mixed precision.

Both sort the tokens by expert. On the CPU each expert's run is one product; on a GPU all runs are one grouped product.
transformers' own `grouped_mm` multiplies in the type of the experts' weights, which autocast does not change: in mixed
precision it uses float32, expert by expert, and waits for the GPU to learn how many tokens each has. Ours multiplies
in the type of the mixed precision, and never waits.

Models ask for them by name: `from_config(..., experts_implementation=register_grouped_experts())`, or "sorted_cpu"
after `register_cpu_experts()`. Experts must be like Nemotron's: down(relu(up(x)) ** 2), no gate, no bias.

`note_real_rows(attention_mask)` before a pass tells `tokens_of_experts` which rows are tokens and which are padding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

SORTED = "sorted_cpu"


def register_cpu_experts() -> str:
    """Register the implementation with transformers; returns its name."""
    ALL_EXPERTS_FUNCTIONS.register(SORTED, sorted_experts_forward)
    return SORTED


def sorted_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of a `NemotronHExperts` module: hidden_states (tokens, d), the other two (tokens, k).

    Raises:
        ValueError: the experts have a gate, a bias or another activation than relu squared.
    """
    if self.has_gate or self.has_bias or type(self.act_fn).__name__ != "ReLUSquaredActivation":
        raise ValueError(f"experts_implementation='{SORTED}' computes down(relu(up(x)) ** 2) only")
    if hidden_states.is_cuda:
        return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    x = hidden_states.to(self.up_proj.dtype)
    return SortedExperts.apply(x, top_k_index, top_k_weights, self.up_proj, self.down_proj).to(hidden_states.dtype)


class SortedExperts(torch.autograd.Function):
    """(x (tokens, d), index (tokens, k), weight (tokens, k), up (e, f, d), down (e, d, f)) -> (tokens, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        order = torch.argsort(index.flatten(), stable=True)
        sizes = torch.bincount(index.flatten(), minlength=len(up)).tolist()
        token = order // index.shape[1]
        share = weight.flatten()[order, None].to(x.dtype)
        chosen = x.index_select(0, token)
        positive = products(chosen, up.mT, sizes).relu_()
        result = products(positive * positive, down.mT, sizes)
        ctx.save_for_backward(chosen, positive, result, token, order, share, up, down)
        ctx.sizes, ctx.shapes = sizes, (x.shape, weight.shape, weight.dtype)
        return x.new_zeros(x.shape).index_add_(0, token, result * share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        chosen, positive, result, token, order, share, up, down = ctx.saved_tensors
        x_shape, weight_shape, weight_dtype = ctx.shapes
        dresult = dout.index_select(0, token)
        dshare = (dresult * result).sum(-1).to(weight_dtype)
        dweight = torch.empty_like(dshare).index_copy_(0, order, dshare).view(weight_shape)
        dresult.mul_(share)
        _, _, _, for_up, for_down = ctx.needs_input_grad  # frozen weights need none
        ddown = outer_products(dresult, positive * positive, ctx.sizes) if for_down else None
        dinner = products(dresult, down, ctx.sizes).mul_(positive).mul_(2)
        dup = outer_products(dinner, chosen, ctx.sizes) if for_up else None
        dx = dout.new_zeros(x_shape).index_add_(0, token, products(dinner, up, ctx.sizes))
        return dx, None, dweight, dup, ddown


def products(rows: Tensor, matrices: Tensor, sizes: list[int]) -> Tensor:
    """Each run of rows times its own matrix: (sum of sizes, a) and (e, a, b) -> (sum of sizes, b)."""
    out = rows.new_empty(rows.shape[0], matrices.shape[2])
    for part, target, matrix in zip(rows.split(sizes), out.split(sizes), matrices, strict=True):
        torch.mm(part, matrix, out=target)
    return out


def outer_products(left: Tensor, right: Tensor, sizes: list[int]) -> Tensor:
    """The gradient of `products` for its matrices: (e, a, b) from runs of left (.., a) and right (.., b)."""
    out = left.new_empty(len(sizes), left.shape[1], right.shape[1])
    for one, other, target in zip(left.split(sizes), right.split(sizes), out, strict=True):
        torch.mm(one.mT, other, out=target)
    return out


# For a GPU in mixed precision: one grouped product.


GROUPED = "grouped_mixed_precision"


def register_grouped_experts() -> str:
    """Register the implementation with transformers; returns its name."""
    ALL_EXPERTS_FUNCTIONS.register(GROUPED, grouped_experts_forward)
    return GROUPED


def mixed_type(device: str) -> torch.dtype | None:
    """Autocast's dtype on a kind of device; None if autocast is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def grouped_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of a `NemotronHExperts` module: hidden_states (tokens, d), the other two (tokens, k).

    Raises:
        ValueError: the experts have a gate or a bias.
    """
    if self.has_gate or self.has_bias:
        raise ValueError(f"experts_implementation='{GROUPED}' computes down(activation(up(x))) only")
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


# Which rows of a pass through a model are tokens; the others are padding.


class _Pass:
    """The latest pass, whose layers may be recomputed for the gradients."""

    mask: Tensor | None = None


def note_real_rows(mask: Tensor | None) -> None:
    """Set the mask of the next pass: any shape, one value per row; None if all rows are tokens."""
    _Pass.mask = None if mask is None else mask.detach().flatten().bool()


def tokens_of_experts(index: Tensor, experts: int) -> Tensor:
    """Number of the pass's tokens per expert, (experts,) int64, without waiting for a GPU.

    Args:
        index: (tokens, k), the experts of each token; all count if the number of tokens differs from the pass's.
    """
    mask = _Pass.mask
    counted = index.new_ones(len(index)) if mask is None or len(mask) != len(index) else mask.to(index)
    each = counted[:, None].expand_as(index)
    return index.new_zeros(experts).scatter_add_(0, index.flatten(), each.flatten())
