"""What llama.cpp computes otherwise than a model's config says, or cannot load: known before a file is made.

    next(limits_of({"model_type": "qwen3_moe", "norm_topk_prob": False}))
    # it computes qwen3_moe as with norm_topk_prob true, and config.json has false

The converter names the architectures and tokenizers that it does not know (`gguf_file.rehearse`); a limit here is one
of the library, which loads the file and then has no key for a setting. Each was read in the sources of the
llama.cpp in llama-cpp-python 0.3.36 (`src/models`), and shown by `nemotron verify`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

FIXED: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"norm_topk_prob": False},
    "olmoe": {"norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen3_next": {"norm_topk_prob": True},
    "lfm2_moe": {"norm_topk_prob": True, "routed_scaling_factor": 1.0},
}
"""Settings that a GGUF file has no key for, by `model_type`, and the value that llama.cpp computes with."""
TWICE_AS_WIDE = ("granitemoehybrid", "bamba", "jamba")
"""Models that llama.cpp loads only if their Mamba layers are twice as wide as the model (a failed assertion else)."""

LARGEST_GEMMA = 62
"""Layers of the one Gemma 3 whose queries are scaled by another size than that of a head."""


def limits_of(config: Mapping[str, Any]) -> Iterator[str]:
    """Each limit that a config is beyond, as the rest of a sentence about llama.cpp.

    Args:
        config: all settings, also those that config.json leaves at their defaults.
    """
    kind = config.get("model_type", "")
    for key, fixed in FIXED.get(kind, {}).items():
        if (value := config.get(key, fixed)) != fixed:
            yield f"computes {kind} as with {key} {json.dumps(fixed)}, and config.json has {json.dumps(value)}"
    layers = config.get("layers_block_type") or ()
    if kind == "nemotron_h" and {"moe", "mlp"} <= set(layers):
        yield "has no dense layers (mlp) next to layers of experts (moe) in nemotron_h, and config.json has both"
    rotation = config.get("rope_parameters") or {}
    share = rotation.get("partial_rotary_factor", 1)
    if kind == "bamba" and share != 1:
        told = f"config.json has rope_parameters.partial_rotary_factor {share}"
        yield f"takes the heads of bamba as rotated whole, and {told}"
    if kind == "gemma3_text":
        yield from _of_gemma(config)
    if rotation.get("rope_type") == "yarn" and rotation.get("truncate") is False:
        yield "rounds the limits of YaRN, and config.json has rope_parameters.truncate false"
    if kind == "granitemoehybrid" and config.get("position_embedding_type") == "rope":
        yield "has no positions in granitemoehybrid with Mamba layers, and config.json has position_embedding_type rope"
    if kind in TWICE_AS_WIDE and (wide := config.get("mamba_expand", 2)) != 2:
        yield f"knows mamba_expand 2 alone in {kind}, and config.json has {wide}"


def _of_gemma(config: Mapping[str, Any]) -> Iterator[str]:
    """Of Gemma 3, for which llama.cpp knows the sizes that were published."""
    count, size = config["num_hidden_layers"], config["head_dim"]
    scale = config["hidden_size"] // config["num_attention_heads"] if count == LARGEST_GEMMA else size
    if (value := config.get("query_pre_attn_scalar", scale)) != scale:
        yield f"scales queries of gemma3_text by {scale}, and config.json has query_pre_attn_scalar {value}"
    kinds = ["full_attention" if number % 6 == 5 else "sliding_attention" for number in range(count)]
    if (config.get("layer_types") or kinds) != kinds:
        yield "gives each sixth layer of gemma3_text full attention, and config.json has other layer_types"
