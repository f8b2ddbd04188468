"""Switch off settings that need Transformer Engine or CUDA, on machines without a GPU.

Bridge's own checks refuse them on a CPU. With them off, the checks still cover divisibility, lengths, batches, packing
and the schedule; they say nothing about kernels or precision.
"""

from typing import Any

import torch

MODEL = {
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "moe_permute_fusion": False,
    "use_fused_weighted_squared_relu": False,
    "tp_comm_overlap": False,
    "cuda_graph_impl": "none",
    "use_te_rng_tracker": False,
}
ADAM_DTYPES = ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def switch_off(container: Any) -> list[str]:
    """Change the container in place; returns the changed names, such as `model.apply_rope_fusion`."""
    model, optimizer = container.model, container.optimizer
    wanted: list[tuple[Any, str, str, Any]] = [
        *((model, "model", name, value) for name, value in MODEL.items()),
        (container.rng, "rng", "te_rng_tracker", False),
        (optimizer, "optimizer", "use_precision_aware_optimizer", False),
        *((optimizer, "optimizer", name, torch.float32) for name in ADAM_DTYPES),
        (container, "", "comm_overlap", None),
    ]
    if container.mixed_precision is not None:
        eight_bits = {"fp8": None, "fp4": None, "fp8_param_gather": False, "fp4_param_gather": False}
        wanted += [(container.mixed_precision, "mixed_precision", name, value) for name, value in eight_bits.items()]
    if model.moe_token_dispatcher_type == "flex":
        wanted.append((model, "model", "moe_token_dispatcher_type", "alltoall"))
        wanted.append((model, "model", "moe_flex_dispatcher_backend", None))
    return [changed for target, section, name, value in wanted if (changed := _set(target, section, name, value))]


def _set(target: Any, section: str, name: str, value: Any) -> str | None:
    if getattr(target, name, value) == value:
        return None
    setattr(target, name, value)
    return f"{section}.{name}".lstrip(".")
