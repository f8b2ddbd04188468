#!/usr/bin/env bash
# The guess: LoRA with `target_modules=["gate_proj", "up_proj", "down_proj"]` on a mixture of experts adapts every
# part of that name. In the checkpoints, the routed experts and the shared expert both have these names
# (`experts.0.up_proj`, `shared_experts.up_proj`).
#
# What happens: transformers 5 holds the routed experts of a layer as fused parameters, and peft follows for some
# kinds of models only. The same list adapts the shared expert alone in Qwen2-MoE, and the routed experts alone in
# DeepSeek-V3. Nothing warns of the part that is left out. With NemotronH (`up_proj`, `down_proj`; no gate) it is the
# shared expert alone.
#
# Why it matters: either most of the weights of the model or the expert that every token passes stays as it was, and
# the training runs without a sign of it. Look at the names of the parameters that require gradients, and name fused
# experts with `target_parameters`.
#
# Versions: peft 0.21.2, transformers 5.23.0, torch 2.13.0. Date: 2026-11-28.
#
# Seen:
#   peft 0.21.2 transformers 5.23.0
#   Qwen2-MoE: routed experts adapted: False, shared expert adapted: True
#   DeepSeek-V3: routed experts adapted: True, shared expert adapted: False
#   NemotronH: routed experts adapted: False, shared expert adapted: True
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment"
uv pip install --quiet --exclude-newer 2026-11-28 \
    torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 numpy==2.4.6

environment/bin/python -W ignore - <<'PYTHON'
import sys

import peft
import transformers
from peft import LoraConfig, get_peft_model
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

print("peft", peft.__version__, "transformers", transformers.__version__)
COMMON = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_experts_per_tok=2, moe_intermediate_size=16)
ONE_LAYER = dict(num_hidden_layers=1, intermediate_size=64)


def adapted(model, targets: list[str]) -> tuple[bool, bool]:
    """Say whether the routed experts and the shared expert get an adapter."""
    lora = get_peft_model(model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    names = [name for name, parameter in lora.named_parameters() if parameter.requires_grad]
    return any(".experts." in name for name in names), any("shared_expert" in name for name in names)


qwen = Qwen2MoeForCausalLM(
    Qwen2MoeConfig(**COMMON, **ONE_LAYER, num_experts=4, shared_expert_intermediate_size=32)
)
deepseek = DeepseekV3ForCausalLM(
    DeepseekV3Config(
        **COMMON,
        **ONE_LAYER,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=0,
        n_group=1,
        topk_group=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
)
nemotron = NemotronHForCausalLM(
    NemotronHConfig(
        **COMMON,
        layers_block_type=["moe"],
        n_routed_experts=4,
        n_shared_experts=1,
        moe_shared_expert_intermediate_size=32,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=16,
    )
)
three = ["gate_proj", "up_proj", "down_proj"]
found = {
    "Qwen2-MoE": adapted(qwen, three),
    "DeepSeek-V3": adapted(deepseek, three),
    "NemotronH": adapted(nemotron, three[1:]),
}
for name, (routed, shared) in found.items():
    print(f"{name}: routed experts adapted: {routed}, shared expert adapted: {shared}")

if found != {"Qwen2-MoE": (False, True), "DeepSeek-V3": (True, False), "NemotronH": (False, True)}:
    sys.exit("changed: other parts of these models are adapted")
PYTHON
