"""What a layout of Megatron-Bridge means for a model: what it cannot split, and the size of the optimizer."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nemotron_engines.megatron_bridge.needs import (
    UNEVEN_RECIPES,
    known_width,
    optimizer_bytes,
    split_problems,
    unpadded,
)
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.modeling.architecture import load_architecture

SUPER = "nemotronh.nemotron_3_super.nemotron_3_super_pretrain_config"
NANO = "nemotronh.nemotron_3_nano.nemotron_3_nano_pretrain_config"


def engine(**values: Any) -> MegatronBridgeEngine:
    sizes = dict.fromkeys((f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert")), 1)
    sizes["context_parallel_size"] = 1
    usual = {"recipe": None, "mixed_precision": "bf16_mixed", "overrides": {}, "sequence_parallel": True}
    return cast(MegatronBridgeEngine, SimpleNamespace(**(sizes | usual | values)))


def told(**values: Any) -> list[str]:
    problems = split_problems(engine(**values), load_architecture("super3", {}))
    return [f"{one.key}: {one.message}; {one.remedy}" for one in problems]


@pytest.mark.parametrize(
    ("kind", "size", "count", "valid"),
    [
        ("tensor", 3, "32 attention heads, 2 key-value heads, 128 Mamba heads, 8 Mamba groups", "1, 2, 4, 8"),
        ("tensor", 16, "8 Mamba groups", "1, 2, 4, 8"),
        ("expert", 24, "512 routed experts", "1, 2, 4, 8, 16, 32, 64, 128, 256, 512"),
        ("pipeline", 3, "88 layers", "1, 2, 4, 8, 11, 22, 44, 88"),
    ],
)
def test_what_megatron_cannot_split_is_told_with_the_values_that_it_can(
    kind: str, size: int, count: str, valid: str
) -> None:
    key = f"{kind}_model_parallel_size"
    what = f"Megatron cannot split the model's {count} into {size} parts"
    assert told(**{key: size}) == [f"engine.{key}: {what}; set engine.{key} to one of {valid}"]


@pytest.mark.parametrize(
    ("tensor", "context", "seq_length", "counts"),
    [
        (
            1,
            3,
            8192,
            "8192 tokens of a row (in 2 pieces for each part), 128 Mamba heads of a tensor part, 8 Mamba groups",
        ),
        (8, 32, 8192, "16 Mamba heads of a tensor part"),
        (1, 4, 4100, "4100 tokens of a row"),
    ],
)
def test_a_row_that_megatron_cannot_share_out_is_told(tensor: int, context: int, seq_length: int, counts: str) -> None:
    layout = engine(tensor_model_parallel_size=tensor, context_parallel_size=context)
    (problem,) = split_problems(layout, load_architecture("super3", {}), seq_length)
    assert counts in problem.message
    assert problem.key == "engine.context_parallel_size"


def test_the_context_of_a_recipe_with_long_rows_can_be_shared_out() -> None:
    layout = engine(tensor_model_parallel_size=2, context_parallel_size=64)
    assert not list(split_problems(layout, load_architecture("super3", {}), 1_048_576))


def test_experts_beside_tensor_parallelism_need_sequence_parallelism() -> None:
    (said,) = told(tensor_model_parallel_size=2, sequence_parallel=False)
    assert "set engine.sequence_parallel=true" in said
    given = {"model": {"sequence_parallel": True}}
    assert told(tensor_model_parallel_size=2, sequence_parallel=False, overrides=given) == []


def test_packed_rows_cannot_be_shared_out() -> None:
    assert [one.key for one in unpadded(engine(context_parallel_size=2))] == ["engine.context_parallel_size"]
    assert not list(unpadded(engine()))


def test_a_key_value_head_may_lie_on_several_processes() -> None:
    assert told(tensor_model_parallel_size=8, expert_model_parallel_size=16, pipeline_model_parallel_size=8) == []


def test_stages_of_unequal_length_are_megatrons_matter() -> None:
    uneven = {"model": {"num_layers_in_last_pipeline_stage": 4}}
    assert told(pipeline_model_parallel_size=5, overrides=uneven) == []
    assert told(pipeline_model_parallel_size=5, recipe=f"nemotronh.{UNEVEN_RECIPES[0]}") == []
    assert told(expert_model_parallel_size=24, overrides={"model": {"num_moe_experts": 48}}) == []


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (SUPER, 6),
        ("nemotronh.nemotron_3_super.nemotron_3_super_sft_config", 6),
        ("nemotronh.gb200.nemotron_3_super.nemotron_3_super_pretrain_64gpu_gb200_bf16_config", 12),
        (NANO, 12),
        ("nemotronh.nemotron_3_nano.nemotron_3_5_lightning_pretrain_config", 12),
        ("nemotronh.nemotron_3_ultra.nemotron_3_ultra_pretrain_config", 12),
        (None, 12),
    ],
)
def test_the_optimizer_is_as_large_as_the_recipe_makes_it(recipe: str | None, expected: int) -> None:
    assert optimizer_bytes(engine(recipe=recipe)) == expected


def test_the_optimizer_of_an_unknown_recipe_is_assumed_large_and_never_refused_for_it() -> None:
    unknown = engine(recipe="qwen.qwen3.qwen3_8b_pretrain_config")
    assert known_width(unknown.recipe) is None
    assert (optimizer_bytes(unknown), optimizer_bytes(unknown, unknown=2)) == (12, 6)


def test_settings_of_the_optimizer_count() -> None:
    def asked(**optimizer: Any) -> int:
        return optimizer_bytes(engine(recipe=SUPER, overrides={"optimizer": optimizer}))

    assert asked(use_precision_aware_optimizer=False) == 12
    assert asked(main_params_dtype="float32") == asked(main_params_dtype="torch.float32") == 8
    assert optimizer_bytes(engine(recipe=SUPER, mixed_precision=None)) == 8
