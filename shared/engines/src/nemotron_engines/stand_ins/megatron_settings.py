"""Adapt a Megatron-Bridge configuration to a machine without a GPU.

Changed: float32 instead of half precision, torch's layers instead of Transformer Engine's, nothing fused, nothing
overlapped, gloo instead of NCCL. The architecture, the data, the schedule, the batch and the optimizer's settings
stay as they are:

    use_cpu_settings(container)   # after te_only.switch_off, before container.validate()
"""

from typing import Any

import torch

from nemotron_engines.stand_ins.te_only import MODEL

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
    """Change a ConfigContainer in place; the settings of te_only.py must already be off."""
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
