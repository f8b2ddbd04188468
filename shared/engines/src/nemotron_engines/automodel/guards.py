"""Checks before the first step and after the last, for faults that Automodel ignores silently."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from nemotron_shared.errors import UserError

LARGEST_SANE_WEIGHT = 1e4  # weights read from uninitialised memory were seen between 1e12 and NaN


def require_sane_weights(model: nn.Module) -> None:
    """Refuse uninitialised weights.

    Automodel 0.7.0 builds its NemotronH on the meta device and then initialises only part of it, unless a checkpoint
    provides the rest. Training would continue with a NaN loss.

    Raises:
        UserError: a parameter is not finite, or larger than any trained weight.
    """
    for name, parameter in model.named_parameters():
        values = local(parameter.detach())
        largest = float(values.abs().max()) if values.numel() else 0.0
        if not math.isfinite(largest) or largest > LARGEST_SANE_WEIGHT:
            raise UserError(
                f"before the first step, parameter {name} holds {largest:g}: it was never initialised or loaded",
                "set run.model to a folder with complete weights",
            )


def refuse_passed_by_adapters(model: nn.Module) -> None:
    """Refuse an adapter on Mamba's `out_proj`, whose weight Automodel uses without calling the module.

    Raises:
        UserError: there is one.
    """
    for name, module in model.named_modules():
        if name.endswith(".out_proj") and hasattr(module, "lora_A"):
            raise UserError(
                f"engine.peft adapts {name}, but Automodel's fused Mamba call would bypass the adapter",
                "leave out_proj out of engine.peft.target_modules, or set engine.peft.match_all_linear=true",
            )


def refuse_unmergeable(model: nn.Module) -> None:
    """Refuse adapters that could be trained but not merged, such as those of routed experts.

    Raises:
        UserError: adapters train something other than the two matrices of a linear layer.
    """
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    matrices = [name for name in trained if name.endswith((".lora_A.weight", ".lora_B.weight"))]
    other = sorted(set(trained) - set(matrices))
    if other and any("lora_" in name for name in trained):
        raise UserError(
            f"engine.peft would train {other[0]}, which cannot be merged into the model afterwards",
            "choose linear layers in engine.peft.target_modules, or set engine.peft.match_all_linear=true",
        )


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Number of trained parameters and of all, over all shards."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def idle_adapters(model: nn.Module) -> list[str]:
    """Adapters that no gradient reached on this process: lora_B starts at zero and is still zero."""
    return [
        name.removesuffix(".lora_B.weight").removeprefix("module.")
        for name, parameter in model.named_parameters()
        if name.endswith(".lora_B.weight") and not bool(local(parameter.detach()).any())
    ]


def idle_on_all(mine: list[str], processes: int) -> list[str]:
    """Of the adapters idle here, those idle on every process."""
    if processes == 1:
        return mine
    found: list[Any] = [None] * processes
    torch.distributed.all_gather_object(found, mine)
    return [name for name in mine if all(name in other for other in found)]


def local(tensor: Any) -> Tensor:
    """This process's part of a tensor that may be sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
