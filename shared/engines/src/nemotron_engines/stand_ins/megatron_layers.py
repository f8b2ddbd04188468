"""The layers of a hybrid (Mamba, attention, mixture of experts) from megatron-core's own torch modules.

megatron-core only has specs for hybrids with Transformer Engine's layers. On a CPU, a model provider uses this instead:

    provider.hybrid_stack_spec = local_hybrid_stack_spec

Norms stand before the layers instead of inside them. Checkpoints name them as if they stood inside, so that Transformer
Engine's layers load them, and the reverse. Bridge's conversion knows both forms, except that it knows no such norm
before the attention of multi-token prediction. Import this after the stubs are installed
(transformer_engine.py).
"""

from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add  # ty: ignore[import-not-found]
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec  # ty: ignore[import-not-found]
from megatron.core.models.hybrid.hybrid_block import (  # ty: ignore[import-not-found]
    HybridStack,
    HybridStackSubmodules,
)
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules  # ty: ignore[import-not-found]
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules  # ty: ignore[import-not-found]
from megatron.core.ssm.mlp_layer import MLPLayer  # ty: ignore[import-not-found]
from megatron.core.tensor_parallel.layers import (  # ty: ignore[import-not-found]
    ColumnParallelLinear,
    RowParallelLinear,
)
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules  # ty: ignore[import-not-found]
from megatron.core.transformer.dot_product_attention import DotProductAttention  # ty: ignore[import-not-found]
from megatron.core.transformer.enums import AttnMaskType  # ty: ignore[import-not-found]
from megatron.core.transformer.mlp import MLP, MLPSubmodules  # ty: ignore[import-not-found]
from megatron.core.transformer.multi_token_prediction import (  # ty: ignore[import-not-found]
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec  # ty: ignore[import-not-found]
from megatron.core.transformer.torch_norm import WrappedTorchNorm  # ty: ignore[import-not-found]
from megatron.core.transformer.transformer_layer import (  # ty: ignore[import-not-found]
    MoETransformerLayer,
    TransformerLayer,
    TransformerLayerSubmodules,
)

from nemotron_engines.stand_ins.megatron_cuda import Norm


def local_hybrid_stack_spec() -> ModuleSpec:
    """A HybridStack without Transformer Engine."""
    mixer = MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear, core_attention=DotProductAttention, linear_proj=RowParallelLinear
    )
    mlp = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    # num_experts only enables experts; the config sets their number.
    experts = get_moe_module_spec(use_te=False, num_experts=8, moe_grouped_gemm=False)
    bda = get_bias_dropout_add
    submodules = HybridStackSubmodules(
        mamba_layer=ModuleSpec(
            module=MambaLayer,
            submodules=MambaLayerSubmodules(
                norm=WrappedTorchNorm,
                mixer=ModuleSpec(module=MambaMixer, submodules=mixer),
                mamba_bda=bda,
                sharded_state_dict_keys_map={"norm.": "mixer.in_proj.layer_norm_"},
            ),
        ),
        attention_layer=ModuleSpec(
            module=TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=WrappedTorchNorm,
                self_attention=ModuleSpec(
                    module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention
                ),
                self_attn_bda=bda,
                sharded_state_dict_keys_map={"input_layernorm.": "self_attention.linear_qkv.layer_norm_"},
            ),
        ),
        moe_layer=ModuleSpec(
            module=MoETransformerLayer,
            submodules=TransformerLayerSubmodules(pre_mlp_layernorm=Norm, mlp=experts, mlp_bda=bda),
        ),
        mlp_layer=ModuleSpec(
            module=MLPLayer,
            submodules=TransformerLayerSubmodules(
                pre_mlp_layernorm=WrappedTorchNorm,
                mlp=partial(MLP.as_mlp_submodule, submodules=mlp),
                mlp_bda=bda,
                sharded_state_dict_keys_map={"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"},
            ),
        ),
        mtp_block_spec=_prediction_spec(),
    )
    return ModuleSpec(module=HybridStack, submodules=submodules)


def _prediction_spec() -> ModuleSpec:
    """Spec of the modules around multi-token prediction's layers, which are of the kinds above."""
    norm = WrappedTorchNorm
    parts = MultiTokenPredictionLayerSubmodules(enorm=norm, hnorm=norm, layer_norm=norm, eh_proj=ColumnParallelLinear)
    layer = ModuleSpec(module=MultiTokenPredictionLayer, submodules=parts)
    return ModuleSpec(
        module=MultiTokenPredictionBlock, submodules=MultiTokenPredictionBlockSubmodules(layer_specs=[layer])
    )
