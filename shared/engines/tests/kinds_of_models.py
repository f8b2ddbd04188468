"""Models of other architectures and of our own, without weights: names and shapes of their parameters.

python shared/engines/tests/kinds_of_models.py        writes decayed.yaml anew; look at the difference
"""

import re
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from moe_support import engine
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Trainer

from nemotron_engines.modeling.mtp import class_of
from nemotron_engines.modeling.roles import decayed

DECAYED = Path(__file__).parent / "decayed.yaml"
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 2}
NEMOTRON = {
    "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "llama_tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_moe": {"model_type": "qwen3_moe"} | EXPERTS,
    "gemma3": {"model_type": "gemma3_text"},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4},
    "cohere": {"model_type": "cohere", "use_qk_norm": True},
    "gpt_oss": {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2},
    "mamba": {"model_type": "mamba", "state_size": 4, "num_hidden_layers": 2},
    "mamba2": {"model_type": "mamba2", "num_heads": 8, "expand": 2, "state_size": 16, "n_groups": 2},
    "jamba": {"model_type": "jamba", "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 4,
              "attn_layer_offset": 2, "mamba_dt_rank": 4},
    "zamba": {"model_type": "zamba", "layer_types": ["mamba", "mamba", "hybrid"] * 2, "num_hidden_layers": 6,
              "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": {"model_type": "zamba2", "mamba_d_state": 16, "mamba_headdim": 8, "n_mamba_heads": 8,
               "mamba_ngroups": 2, "layer_types": ["mamba", "hybrid"] * 2, "adapter_rank": 4,
               "use_shared_attention_adapter": True},
    "bamba": {"model_type": "bamba", "attn_layer_indices": [2]} | MAMBA,
    "falcon_h1": {"model_type": "falcon_h1", "mamba_d_ssm": 64} | MAMBA,
    "granite_moe_hybrid": {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2,
                           "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16} | MAMBA,
    "lfm2_moe": {"model_type": "lfm2_moe", "num_dense_layers": 1,
                 "layer_types": ["conv", "full_attention"] * 2} | EXPERTS,
    "qwen3_next": {"model_type": "qwen3_next", "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4,
                   "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8} | EXPERTS,
    "deepseek_v3": {"model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
                    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 16,
                    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
                    "num_key_value_heads": 4},
    "nemotron_h": {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-"} | NEMOTRON,
    "nemotron_h_experts_mtp": {"model_type": "nemotron_h", "hybrid_override_pattern": "M*E", "moe_latent_size": 8,
                               "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"} | NEMOTRON,
}  # fmt: skip


def without_weights(name: str) -> PreTrainedModel:
    """A small model on the meta device."""
    fields = SIZES | KINDS[name]
    config = AutoConfig.for_model(**{key: value for key, value in fields.items() if key not in _unknown(fields)})
    predicts = fields.get("num_nextn_predict_layers")
    kind = class_of(engine(mtp_num_layers=1, mtp_loss_scaling_factor=0.1)) if predicts else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config)


def _unknown(fields: dict[str, Any]) -> set[str]:
    """Sizes that follow from others."""
    return {"num_hidden_layers"} if fields["model_type"] == "nemotron_h" else set()


def written(model: PreTrainedModel) -> dict[str, list[str]]:
    """Which parameters decay and which do not, with their shapes and `*` for the number of a layer; and which of these
    transformers' own Trainer would decay, or not, unlike ours.
    """
    ours, theirs = set(decayed(model)), set(Trainer.get_decay_parameter_names(cast(Any, None), model))
    found: dict[str, set[str]] = {one: set() for one in ("decayed", "not decayed", "otherwise by transformers")}
    for name, parameter in model.named_parameters():
        line = re.sub(r"[.][0-9]+[.]", ".*.", name)
        found["decayed" if name in ours else "not decayed"].add(f"{line} {list(parameter.shape)}")
        if (name in ours) != (name in theirs):
            found["otherwise by transformers"].add(line)
    return {which: sorted(lines) for which, lines in found.items()}


if __name__ == "__main__":
    everything = {name: written(without_weights(name)) for name in KINDS}
    DECAYED.write_text(yaml.safe_dump(everything, sort_keys=False, width=120))
