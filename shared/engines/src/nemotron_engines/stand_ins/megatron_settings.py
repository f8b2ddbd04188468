"""Settings that a Megatron-Bridge configuration must leave out without a GPU.

`switch_off` turns off settings that only Transformer Engine or CUDA can honour, which Bridge's own checks refuse on a
CPU. The checks still cover divisibility, lengths, batches, packing and the schedule, but not kernels or precision.

`use_cpu_settings(container)`, before container.validate(), changes the rest: float32 instead of half precision,
torch's layers instead of Transformer Engine's, nothing fused or overlapped, gloo instead of NCCL. The architecture,
the data, the schedule, the batch and the optimizer's settings stay as they are.
"""

from typing import Any

import torch

# Settings that only Transformer Engine or CUDA can honour.


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
    return [changed for target, section, name, value in wanted if (changed := _changed(target, section, name, value))]


def _changed(target: Any, section: str, name: str, value: Any) -> str | None:
    if getattr(target, name, value) == value:
        return None
    setattr(target, name, value)
    return f"{section}.{name}".lstrip(".")


# Settings of the model provider.
MODEL_OFF = (
    "bf16", "fp16", "bias_dropout_fusion", "masked_softmax_fusion", "bias_activation_fusion",
    "cross_entropy_loss_fusion", "persist_layer_norm", "moe_grouped_gemm", "moe_router_fusion",
    "moe_shared_expert_overlap", "first_last_layers_bf16", "keep_mtp_spec_in_bf16", "moe_pad_expert_input_to_capacity",
    "deterministic_mode", "fine_grained_activation_offloading",
)  # fmt: skip
MODEL_NONE = (
    "fp8", "fp4", "mamba_training_ssm_states_dtype", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "moe_expert_capacity_factor",
)  # fmt: skip
OPTIMIZER_OFF = (
    "bf16", "fp16", "use_distributed_optimizer", "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step", "optimizer_cpu_offload",
)  # fmt: skip
DDP_OFF = (
    "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "average_in_collective",
    "use_megatron_fsdp", "fp8_param_gather",
)  # fmt: skip


def use_cpu_settings(container: Any) -> None:
    """Change a ConfigContainer in place; `switch_off` must have been called."""
    use_cpu_model(container.model)
    _set(container.optimizer, dict.fromkeys(OPTIMIZER_OFF, False) | {"params_dtype": torch.float32})
    _set(container.ddp, dict.fromkeys(DDP_OFF, False))
    container.mixed_precision = None
    container.dist.distributed_backend = "gloo"
    container.checkpoint.async_save = False
    _set(container.dataset, {"num_workers": 0, "pin_memory": False, "persistent_workers": False})
    container.train.manual_gc = False


def use_cpu_model(provider: Any) -> None:
    """Change the model provider in place: the same architecture from torch's layers, in float32."""
    from megatron.core.transformer.enums import AttnBackend  # ty: ignore[import-not-found]

    from nemotron_engines.stand_ins.megatron_layers import local_hybrid_stack_spec

    if getattr(provider, "mtp_num_layers", None):
        provider.mtp_num_layers = 0  # CPU runs only show that a config trains; skip multi-token prediction
    # With several processes, megatron-core's alltoall passes sizes that gloo does not accept.
    dispatcher = "allgather" if provider.expert_model_parallel_size > 1 else "alltoall"
    float32 = dict.fromkeys(("params_dtype", "pipeline_dtype", "autocast_dtype"), torch.float32)
    _set(
        provider,
        dict.fromkeys(MODEL_OFF, False)
        | dict.fromkeys(MODEL_NONE)
        | MODEL
        | float32
        | {
            "use_cpu_initialization": True,
            "cuda_graph_modules": [],
            "attention_backend": AttnBackend.local,
            "moe_token_dispatcher_type": dispatcher,
            "moe_flex_dispatcher_backend": None,
            "hybrid_stack_spec": local_hybrid_stack_spec,
        },
    )


def _set(section: Any, values: dict[str, Any]) -> None:
    """Set the fields that the section has."""
    for name, value in values.items():
        if hasattr(section, name):
            setattr(section, name, value)
