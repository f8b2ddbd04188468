"""Matrix products whose rows do not depend on each other: tiles of a fixed shape, as many as it takes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

TILE = 32
"""Rows of a tile. A library chooses its code by the shape of a product, and never sees another one."""


class TiledProduct(torch.autograd.Function):
    """(x (rows, a), weight (b, a)) -> x @ weight.T; rows is a multiple of TILE."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return tiled(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight = ctx.needs_input_grad
        return dout @ weight if for_x else None, dout.t() @ x if for_weight else None


def tiled(x: Tensor, matrix: Tensor) -> Tensor:
    """x (rows, a) @ matrix (a, b)."""
    tiles = x.view(len(x) // TILE, TILE, x.shape[-1])
    return torch.bmm(tiles, matrix.expand(len(tiles), *matrix.shape)).view(len(x), matrix.shape[1])


def linear(module: Any, x: Tensor) -> Tensor:
    """What an `nn.Linear` gives for x (..., a), or one that PEFT has put adapters on; rows in whole tiles.

    Raises:
        TypeError: another kind of module.
    """
    if isinstance(module, nn.Linear):
        flat = x.flatten(0, -2)  # no size is left to be found out, which nobody could of no rows at all
        out = TiledProduct.apply(flat, module.weight).view(*x.shape[:-1], module.weight.shape[0])
        return out if module.bias is None else out + module.bias
    base = getattr(module, "base_layer", None)
    if base is None:
        raise TypeError(f"{type(module).__name__} is no linear layer")
    out = linear(base, x)
    if module.disable_adapters or module.merged:
        return out
    for name in module.active_adapters:
        if name in module.lora_A:
            inner = linear(module.lora_A[name], module.lora_dropout[name](x))
            out = out + linear(module.lora_B[name], inner) * module.scaling[name]
    return out
