"""Choose the dtype of published weights: that of the starting model, independent of the compute dtype."""

from pathlib import Path
from typing import Any

import torch

from nemotron_shared.runtime.models.folder import config_of

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def type_to_save(wanted: str | None, base: str) -> torch.dtype | None:
    """The dtype to save in; None to keep the weights as they are.

    Args:
        wanted: `engine.save_dtype`. base: the folder that training started from, "" for random weights.
    """
    config = config_of(Path(base)) if wanted is None and base else {}
    return TYPES.get(wanted or config.get("dtype") or config.get("torch_dtype"))


@torch.no_grad()
def change_type(model: Any, weights: dict[str, torch.Tensor] | None, kind: torch.dtype) -> None:
    """Convert the weights one by one, so that two complete copies are never in memory.

    Weights that the model's code keeps in float32 stay in float32.

    Args:
        weights: used instead of the model's own.
    """
    kept = model._keep_in_fp32_modules_strict or ()
    tensors = model.state_dict(keep_vars=True) if weights is None else weights
    for name, tensor in list(tensors.items()):
        if not tensor.is_floating_point() or any(part in kept for part in name.split(".")):
            continue
        if weights is not None:
            weights[name] = tensor.to(kind)
        else:
            tensor.grad = None
            tensor.data = tensor.data.to(kind)
