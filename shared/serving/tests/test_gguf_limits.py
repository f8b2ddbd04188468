"""What llama.cpp cannot compute is known before a file is made, and its tokenizer is that of tokenizer.json."""

from typing import Any

import pytest

from nemotron_serving.gguf_convert import begins_with_space, is_of_pieces, scores_of, understood
from nemotron_serving.gguf_limits import limits_of

GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 256, "hidden_size": 1152,
         "num_attention_heads": 4}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"
SOUND: tuple[dict[str, Any], ...] = (
    {"model_type": "llama"},
    {"model_type": "qwen3_moe", "norm_topk_prob": True},
    {"model_type": "qwen2_moe", "norm_topk_prob": False},
    {"model_type": "lfm2_moe", "norm_topk_prob": True, "routed_scaling_factor": 1.0},
    {"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention"]},
    {"model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "attention"]},
    {"model_type": "gpt_oss", "rope_parameters": {"rope_type": "yarn", "truncate": True}},
    {"model_type": "granitemoehybrid", "position_embedding_type": None, "mamba_expand": 2},
    GEMMA | {"query_pre_attn_scalar": 256, "layer_types": [*5 * [SLIDING], FULL, SLIDING]},
    GEMMA | {"num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32, "query_pre_attn_scalar": 168},
)
BEYOND: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model_type": "qwen3_moe", "norm_topk_prob": False}, "with norm_topk_prob true, and config.json has false"),
    ({"model_type": "olmoe", "norm_topk_prob": True}, "with norm_topk_prob false, and config.json has true"),
    ({"model_type": "lfm2_moe", "routed_scaling_factor": 2.5}, "routed_scaling_factor 1.0, and config.json has 2.5"),
    ({"model_type": "nemotron_h", "layers_block_type": ["moe", "mlp"]}, "no dense layers (mlp) next to"),
    ({"model_type": "bamba", "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    ({"model_type": "gpt_oss", "rope_parameters": {"rope_type": "yarn", "truncate": False}}, "truncate false"),
    ({"model_type": "granitemoehybrid", "position_embedding_type": "rope"}, "position_embedding_type rope"),
    ({"model_type": "jamba", "mamba_expand": 3}, "knows mamba_expand 2 alone in jamba, and config.json has 3"),
    (GEMMA | {"query_pre_attn_scalar": 128}, "by 256, and config.json has query_pre_attn_scalar 128"),
    (GEMMA | {"layer_types": [FULL] * 7}, "has other layer_types"),
)


@pytest.mark.parametrize("config", SOUND, ids=lambda config: config["model_type"])
def test_a_published_config_is_within_the_limits(config: dict[str, Any]) -> None:
    assert list(limits_of(config)) == []


@pytest.mark.parametrize(("config", "said"), BEYOND, ids=lambda value: value if isinstance(value, str) else "")
def test_a_config_beyond_a_limit_is_told_which(config: dict[str, Any], said: str) -> None:
    (found,) = limits_of(config)
    assert said in found


def test_a_piece_scores_as_early_as_it_is_merged() -> None:
    vocabulary = {"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5, "abc": 6}
    merges = ["a b", "b c", "ab c", "a bc"]
    assert scores_of(vocabulary, merges, {"<s>"}) == {"ab": 0.0, "bc": -1.0, "abc": -2.0}
    with pytest.raises(ValueError, match="would join 'a' and 'bc', which is not a merge"):
        scores_of(vocabulary, merges[:3], {"<s>"})
    with pytest.raises(ValueError, match="merges of several ranks"):
        scores_of(vocabulary, [merges[2], *merges[:2], merges[3]], {"<s>"})


def test_the_first_word_gets_a_space_where_tokenizer_json_puts_one() -> None:
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced]}
    assert not begins_with_space({"normalizer": replaced, "pre_tokenizer": None})
    assert begins_with_space({"normalizer": prepended})
    assert begins_with_space({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}})
    assert not begins_with_space({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}})
    assert is_of_pieces({"model": {"type": "BPE", "byte_fallback": True}})
    assert not is_of_pieces({"model": {"type": "BPE", "byte_fallback": False}})


def test_the_converter_is_told_the_names_of_layers_that_it_knows() -> None:
    granite = {"model_type": "granitemoehybrid", "layer_types": ["linear_attention", "full_attention", "mamba"]}
    assert understood(granite)["layer_types"] == ["mamba", "attention", "mamba"]
    qwen = {"model_type": "qwen3_next", "layer_types": ["linear_attention"]}
    assert understood(dict(qwen)) == qwen
