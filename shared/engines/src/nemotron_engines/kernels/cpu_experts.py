"""A mixture of experts for the CPU: sort the tokens by expert, multiply each expert's run, add the results back.

transformers calls it after `register_cpu_experts()` for a model whose config has
`_experts_implementation = "sorted_cpu"`, for instance through `from_config(..., experts_implementation="sorted_cpu")`.
It needs experts like Nemotron's: down(relu(up(x)) ** 2), without gate and without bias.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

NAME = "sorted_cpu"


def register_cpu_experts() -> str:
    """Register the implementation with transformers; returns its name."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, sorted_experts_forward)
    return NAME


def sorted_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of a `NemotronHExperts` module: hidden_states (tokens, d), the other two (tokens, k).

    Raises:
        ValueError: the experts have a gate, a bias or another activation than relu squared.
    """
    if self.has_gate or self.has_bias or type(self.act_fn).__name__ != "ReLUSquaredActivation":
        raise ValueError(f"experts_implementation='{NAME}' computes down(relu(up(x)) ** 2) only")
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
