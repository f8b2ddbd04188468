"""The production configs of Megatron-Bridge: they compose with our schema, and hold the published values.

That Bridge itself accepts them is tested in stages/*/tests/conformance, where it is installed.
"""

from functools import cache
from typing import Any

import pytest
from megatron_support import EVERY_RECIPE, RECIPES, STAGES, composed, config_of

from nemotron_shared.system.errors import UserError

LAYOUT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
)  # fmt: skip
SUPER, NANO = "nvcr.io/nvidia/nemo:26.02.nemotron_3_super", "nvcr.io/nvidia/nemo:25.11.nemotron_3_nano"
NEW = "nvcr.io/nvidia/nemo:26.08"
# container, (TP, PP, CP, EP), dispatcher, steps, rows per step
VALUES = {
    ("pretrain", "super3"): (SUPER, (1, 2, 1, 32), "hybridep", 993404, 3072),
    ("pretrain", "super3+super3_32gpus"): (SUPER, (1, 2, 1, 16), "hybridep", 993404, 3072),
    ("pretrain", "super3+super3_128gpus"): (SUPER, (1, 2, 1, 32), "hybridep", 993404, 3072),
    ("pretrain", "super3_phase2"): (SUPER, (1, 2, 1, 32), "hybridep", 993404, 3072),
    ("pretrain", "super3_long_context"): (SUPER, (2, 1, 64, 64), "hybridep", 2027, 16),
    ("pretrain", "nano3"): (NANO, (1, 1, 1, 8), "hybridep", 39735, 1024),
    ("pretrain", "ultra3"): (NEW, (2, 12, 1, 32), "hybridep", 794728, 3072),
    ("pretrain", "ultra3_phase2"): (NEW, (2, 12, 1, 32), "hybridep", 794728, 3072),
    ("pretrain", "lightning35"): (NEW, (1, 1, 2, 8), "hybridep", 39735, 512),
    ("sft", "super3"): (SUPER, (8, 1, 1, 16), None, 1700, 4),
    ("sft", "super3+super3_32gpus"): (SUPER, (8, 1, 1, 16), None, 1700, 4),
    ("sft", "super3_lora"): (SUPER, (8, 1, 1, 16), None, 1700, 16),
    ("sft", "nano3"): (NANO, (1, 1, 1, 8), "deepep", 1700, 8),
    ("sft", "nano3_lora"): (NANO, (1, 1, 1, 8), "deepep", 1700, 8),
    ("sft", "ultra3"): (NEW, (2, 6, 1, 32), "hybridep", 1000, 128),
    ("sft", "ultra3_lora"): (NEW, (2, 4, 1, 8), "hybridep", 1000, 128),
    ("sft", "lightning35"): (NEW, (2, 1, 1, 8), "deepep", 100, 128),
    ("sft", "lightning35_lora"): (NEW, (2, 1, 1, 8), "deepep", 100, 128),
}


@cache
def config(stage: str, name: str, *overrides: str) -> Any:
    return config_of(stage, name, *overrides)


def test_every_config_with_this_engine_is_listed() -> None:
    found = {
        (path.parents[1].name, path.stem)
        for stage in RECIPES
        for path in (STAGES / stage / "config").glob("*.yaml")
        if composed(stage, path.stem).tree.engine.name == "megatron_bridge"
    }
    layouts = {
        (path.parents[2].name, f"super3+{path.stem}")
        for stage in RECIPES
        for path in (STAGES / stage / "config" / "engine").glob("super3_*.yaml")
    }
    same = {(stage, "default") for stage in RECIPES} | {("pretrain", "super3_phase1")}  # as super3, by another name
    assert (found - same) | layouts == set(EVERY_RECIPE) == set(VALUES)


@pytest.mark.parametrize(("stage", "name"), EVERY_RECIPE)
def test_a_recipe_composes_and_holds_the_published_values(stage: str, name: str) -> None:
    chosen = config(stage, name)
    engine = chosen.engine
    layout = tuple(getattr(engine, key) for key in LAYOUT)
    batch = (chosen.train.train_iters, chosen.train.global_batch_size)
    assert (engine.container, layout, engine.moe_flex_dispatcher_backend, *batch) == VALUES[stage, name]
    assert engine.world_size == RECIPES[stage][name]
    assert engine.mixed_precision == "bf16_mixed"
    assert (engine.peft.scheme == "lora") == name.endswith("_lora")
    assert chosen.train.micro_batch_size == 1


@pytest.mark.parametrize(("stage", "name"), EVERY_RECIPE)
def test_a_layout_fills_its_processes_and_its_batch(stage: str, name: str) -> None:
    engine, train = config(stage, name).engine, config(stage, name).train
    tensor, pipeline, context, expert = (getattr(engine, key) for key in LAYOUT)
    assert engine.world_size % (tensor * pipeline * context) == 0
    assert engine.world_size % (expert * engine.expert_tensor_parallel_size * pipeline) == 0
    assert train.global_batch_size % (engine.world_size // (tensor * pipeline * context)) == 0


@pytest.mark.parametrize("name", ["super3_phase1", "super3_phase2"])
def test_the_schedule_of_super_pretraining(name: str) -> None:
    chosen = config("pretrain", name)
    scheduler, optimizer = chosen.scheduler, chosen.optimizer
    assert (scheduler.lr_decay_style, scheduler.lr_warmup_iters, scheduler.lr_wsd_decay_iters) == ("WSD", 7949, 198682)
    assert (optimizer.lr, optimizer.min_lr, optimizer.weight_decay) == (4.5e-4, 4.5e-6, 0.1)
    assert (optimizer.adam_beta1, optimizer.adam_beta2, optimizer.adam_eps) == (0.9, 0.95, 1e-8)
    assert chosen.engine.overrides["scheduler"] == {"lr_decay_iters": 992411, "override_opt_param_scheduler": True}
    assert chosen.engine.overrides["model"]["mtp_loss_scaling_factor"] == 0.3
    tokens = chosen.train.train_iters * chosen.train.global_batch_size * chosen.train.seq_length
    assert round(tokens / 1e12, 1) == 25.0
    assert chosen.data_prep.source == f"blend:{name}"


def test_the_second_phase_goes_on_where_the_first_ends_and_the_learning_rate_begins_to_fall() -> None:
    first, second = config("pretrain", "super3_phase1"), config("pretrain", "super3_phase2")
    assert (first.run.model, first.engine.stop_at, first.engine.keep_checkpoint) == (None, 794723, True)
    assert (second.engine.start_from, second.engine.stop_at) == ("state", None)
    assert second.run.model == "super3-pretrain-model:latest"
    assert second.run.missing_model == "error"
    falls = first.engine.overrides["scheduler"]["lr_decay_iters"] - first.scheduler.lr_wsd_decay_iters
    assert 0 <= first.engine.stop_at - falls < 1000


def test_the_schedule_of_ultra_pretraining() -> None:
    first, second = config("pretrain", "ultra3"), config("pretrain", "ultra3_phase2")
    rows = first.train.global_batch_size * first.train.seq_length
    assert round(first.train.train_iters * rows / 1e12, 2) == 20.0
    assert round(first.engine.stop_at * rows / 1e12, 2) == 15.0
    assert (second.engine.start_from, second.engine.stop_at) == ("state", None)
    assert [one.data_prep.source for one in (first, second)] == ["blend:ultra3_phase1", "blend:ultra3_phase2"]
    # reduced in bfloat16, the output layer's gradients made the real run diverge
    assert first.engine.overrides["mixed_precision"]["grad_reduce_in_fp32"] is True


def test_long_context() -> None:
    chosen = config("pretrain", "super3_long_context")
    assert (chosen.train.seq_length, chosen.checkpoint.save_interval) == (1048576, 20)
    assert (chosen.scheduler.lr_decay_style, chosen.optimizer.lr, chosen.optimizer.min_lr) == ("constant", 4.5e-6, 1e-6)
    assert chosen.scheduler.lr_warmup_iters == 0
    assert chosen.engine.start_from == "weights"


@pytest.mark.parametrize(("stage", "name"), EVERY_RECIPE)
def test_a_misspelt_setting_of_the_engine_is_an_error_with_its_place(stage: str, name: str) -> None:
    with pytest.raises(UserError) as caught:
        config(stage, name, "+engine.tensor_parallel_size=2")
    assert "command line: unknown key 'engine.tensor_parallel_size'" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.sequence_parallel=true", "engine.sequence_parallel needs engine.tensor_model_parallel_size above 1"),
        ("engine.moe_token_dispatcher_type=alltoall", "goes with engine.moe_token_dispatcher_type=flex"),
        ("engine.tensor_model_parallel_size=0", "greater than or equal to 1"),
        ("engine.recipe=os.system:x", "engine.recipe: String should match pattern"),
        ("engine.peft.scheme=qlora", "engine.peft.scheme: Input should be 'lora' or 'dora'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        config("sft", "nano3", override)


@pytest.mark.parametrize("stage", RECIPES)
def test_the_tiny_config_takes_the_engine(stage: str) -> None:
    chosen = config(stage, "tiny", "engine=megatron_bridge")
    assert (chosen.engine.name, chosen.engine.recipe, chosen.model.architecture) == (
        "megatron_bridge",
        None,
        "super3_tiny",
    )
