"""A small model is made of any config: a few of its layers, whole heads, and all kinds of layers that it has."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from nemotron_engines.modeling.cut import LARGEST, smaller
from nemotron_engines.modeling.sizes import count_parameters


@pytest.mark.parametrize(
    ("kind", "layers", "told"),
    [
        ("llama", 2, "2 of its 32 layers, 128 of 4096 wide"),
        ("falcon", 2, "2 of its 32 layers, 64 of 4544 wide"),
        ("mamba2", 2, "2 of its 64 layers, 64 of 4096 wide"),
        ("gpt2", 2, "2 of its 12 layers, 64 of 768 wide"),
        ("qwen3_next", 2, "2 of its 48 layers, 128 of 2048 wide"),
        ("smollm3", 2, "2 of its 36 layers, 128 of 2048 wide"),
        ("deepseek_v3", 2, "2 of its 61 layers, 112 of 7168 wide"),
    ],
)
def test_a_large_config_becomes_a_small_model(tmp_path: Path, kind: str, layers: int, told: str) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    small = next(smaller(tmp_path))
    assert small.told == told and small.narrow
    assert small.config.num_hidden_layers == layers
    assert count_parameters(small.config) <= LARGEST


def test_one_layer_of_each_kind_is_left(tmp_path: Path) -> None:
    AutoConfig.for_model("qwen3_next").save_pretrained(tmp_path)
    assert sorted(next(smaller(tmp_path)).config.layer_types) == ["full_attention", "linear_attention"]
    AutoConfig.for_model("deepseek_v3").save_pretrained(tmp_path)
    assert next(smaller(tmp_path)).config.first_k_dense_replace == 1


def test_a_small_model_stays_as_it_is(tmp_path: Path) -> None:
    AutoConfig.for_model(
        "llama", hidden_size=64, intermediate_size=64, num_hidden_layers=3, vocab_size=100
    ).save_pretrained(tmp_path)
    (only,) = smaller(tmp_path)
    assert only.told == "its own size" and only.config.num_hidden_layers == 3 and not only.narrow


def test_a_config_without_a_small_model_gives_none(tmp_path: Path) -> None:
    AutoConfig.for_model("llama", vocab_size=3_000_000).save_pretrained(tmp_path)
    assert list(smaller(tmp_path)) == []
