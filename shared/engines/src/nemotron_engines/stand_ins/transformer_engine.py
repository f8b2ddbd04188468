"""Import stubs of Transformer Engine and nvidia-resiliency-ext, which Megatron-Bridge imports even on a CPU.

A stubbed class can be named, subclassed and tested for; instantiating one fails. megatron-core must not see the stub
of Transformer Engine (it would assume that its layers exist), so core is imported first:

    install_stubs()
    from megatron.bridge.training.pretrain import pretrain
"""

import importlib
from contextlib import suppress
from typing import Any

import torch

from nemotron_engines.stand_ins.mamba_packages import install_mamba_stand_in
from nemotron_engines.stand_ins.modules import add_module

# Modules of megatron-core that check for Transformer Engine and that Bridge imports later.
CORE_MODULES = (
    "fp8_utils", "fp4_utils", "optimizer", "distributed", "transformer.moe.moe_utils",
    "models.gpt.gpt_layer_specs", "models.mamba", "transformer.multi_token_prediction", "dist_checkpointing",
    "models.hybrid.hybrid_layer_specs", "models.mamba.mamba_layer_specs", "models.T5", "models.vision.clip_vit_model",
    "models.multimodal.llava_model", "post_training.modelopt.gpt.model_specs", "models.mimo",
    "transformer.experimental_attention_variant.dsa", "models.backends", "inference",
    "models.gpt.experimental_attention_variant_module_specs", "quantization.utils", "tensor_parallel.random",
    "resharding",
)  # fmt: skip
ENGINE_CLASSES = (
    "Linear", "LayerNormLinear", "ColumnParallelLinear", "GroupedLinear", "LayerNorm", "RMSNorm", "TransformerLayer",
    "LayerNormMLP", "DotProductAttention",
)  # fmt: skip


class OnlyOnGPU(torch.nn.Module):
    """Stub for any class of Transformer Engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        raise RuntimeError(f"{type(self).__name__} of Transformer Engine needs a GPU; it is a stub here")


class _AnyOperation:
    """`transformer_engine.pytorch.ops`: every name exists, but none can be instantiated."""

    def __getattr__(self, name: str) -> type[OnlyOnGPU]:
        if name.startswith("__"):
            raise AttributeError(name)
        return OnlyOnGPU


def install_stubs() -> None:
    """Install Mamba's stand-in, import megatron-core, then install the stubs; the order matters. Idempotent."""
    install_mamba_stand_in()
    importlib.import_module("megatron.core.extensions.transformer_engine")
    for name in CORE_MODULES:
        with suppress(ImportError):  # some parts need packages that are not used for a hybrid
            importlib.import_module(f"megatron.core.{name}")
    classes: dict[str, Any] = {name: type(name, (OnlyOnGPU,), {}) for name in ENGINE_CLASSES}
    add_module("transformer_engine")
    add_module("transformer_engine.pytorch", "0.0.0", **classes, ops=_AnyOperation())
    add_module("nvidia_resiliency_ext")
    add_module("nvidia_resiliency_ext.inprocess", CallWrapper=type("CallWrapper", (), {}))
