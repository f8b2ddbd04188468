"""Megatron-Bridge itself builds and accepts the pretraining recipes, at the number of processes each is made for."""

from functools import partial
from pathlib import Path

import megatron_support
import pytest
from megatron_support import RECIPES, config_of, prepared_and_stubbed, recipe_task, task_of

from nemotron_shared.artifacts import Artifact
from nemotron_shared.families import architecture

pytestmark = pytest.mark.megatron
build = partial(megatron_support.build, "pretrain")
refusal = partial(megatron_support.refusal, "pretrain")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return prepared_and_stubbed("pretrain", tmp_path_factory.mktemp("data") / "home")


@pytest.mark.parametrize("name", RECIPES["pretrain"])
def test_bridge_accepts_a_recipe_at_its_number_of_processes(name: str, tmp_path: Path, data: Artifact) -> None:
    ours = config_of("pretrain", name)
    container = build(name, tmp_path, data)
    model = container.model
    assert container.train.train_iters == (ours.engine.stop_at or ours.train.train_iters)
    assert container.train.global_batch_size == ours.train.global_batch_size
    assert container.dataset.seq_length == model.seq_length == ours.train.seq_length
    assert model.expert_model_parallel_size == ours.engine.expert_model_parallel_size
    assert (container.optimizer.lr, container.optimizer.min_lr) == (ours.optimizer.lr, ours.optimizer.min_lr)
    assert container.mixed_precision.bf16
    assert container.mixed_precision.grad_reduce_in_fp32 == (ours.run.family == "ultra3")
    shared = architecture(ours.run.family)["moe_shared_expert_intermediate_size"]
    assert (model.moe_shared_expert_intermediate_size, model.moe_router_force_load_balancing) == (shared, False)


@pytest.mark.parametrize(("name", "steps"), [("super3", 794723), ("super3_phase2", 993404)])
def test_the_schedule_of_super_is_the_published_one(name: str, steps: int, tmp_path: Path, data: Artifact) -> None:
    container = build(name, tmp_path, data)
    scheduler = container.scheduler
    assert (scheduler.lr_decay_style, scheduler.lr_wsd_decay_style) == ("WSD", "minus_sqrt")
    assert (scheduler.lr_warmup_iters, scheduler.lr_decay_iters) == (7949, 992411)
    assert (scheduler.lr_wsd_decay_iters, scheduler.override_opt_param_scheduler) == (198682, True)
    assert container.train.train_iters == steps
    model = container.model
    assert (model.mtp_num_layers, model.mtp_loss_scaling_factor, model.mtp_use_repeated_layer) == (2, 0.3, True)
    assert (model.num_moe_experts, model.moe_router_topk, model.moe_latent_size) == (512, 22, 1024)


@pytest.mark.parametrize(("name", "weight"), [("ultra3", 0.1), ("lightning35", 0.3)])
def test_ultra_and_lightning_predict_two_tokens_ahead(name: str, weight: float, tmp_path: Path, data: Artifact) -> None:
    model = build(name, tmp_path, data).model
    assert (model.mtp_num_layers, model.mtp_hybrid_override_pattern, model.mtp_use_repeated_layer) == (2, "*E", True)
    assert model.mtp_loss_scaling_factor == weight


def test_the_second_phase_loads_the_state_of_the_first(tmp_path: Path, data: Artifact) -> None:
    container = build("super3_phase2", tmp_path, data)
    assert container.checkpoint.load == str(tmp_path / "model-super3_phase2" / "megatron")
    assert container.checkpoint.pretrained_checkpoint is None
    assert container.checkpoint.save != container.checkpoint.load
    assert container.checkpoint.load == str(tmp_path / "model-super3_phase2" / "megatron")


def test_a_run_that_has_a_checkpoint_goes_on_from_its_own(tmp_path: Path, data: Artifact) -> None:
    from nemotron_engines.megatron_bridge.translate import CHECKPOINT_MARK, build_config

    started = recipe_task("pretrain", "super3_phase2", tmp_path, data)
    own = started.run.checkpoints / "megatron"
    own.mkdir(parents=True)
    (own / CHECKPOINT_MARK).touch()
    assert build_config(started, world_size=64).checkpoint.load == str(own)


def test_long_context_starts_from_weights_at_a_constant_rate(tmp_path: Path, data: Artifact) -> None:
    container = build("super3_long_context", tmp_path, data)
    assert (container.scheduler.lr_decay_style, container.scheduler.lr_warmup_iters) == ("constant", 0)
    assert container.model.context_parallel_size == 64
    assert container.checkpoint.pretrained_checkpoint == str(tmp_path / "model-super3_long_context" / "megatron")


def test_the_architecture_is_ours_where_a_recipe_describes_its_model_itself(tmp_path: Path, data: Artifact) -> None:
    """Nano's pretraining recipe asks no hub; `model` must not be ignored because of that."""
    assert build("nano3", tmp_path / "a", data).model.hidden_size == 2688
    changed = build("nano3", tmp_path / "b", data, "+model.overrides.hidden_size=2048").model
    assert (changed.hidden_size, changed.num_layers, changed.vocab_size) == (2048, 52, 512)


@pytest.mark.parametrize("name", RECIPES["pretrain"])
def test_bridge_refuses_a_recipe_at_an_impossible_number(name: str, tmp_path: Path, data: Artifact) -> None:
    said = refusal(name, tmp_path, data, world_size=3)
    assert said.startswith("Megatron-Bridge refuses the configuration: ")
    assert "divisible" in said


@pytest.mark.parametrize("name", RECIPES["pretrain"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("scheduler.lr_decay_iter=3", "SchedulerConfig has no field 'lr_decay_iter'\n  did you mean 'lr_decay_iters'?"),
        ("model.mtp_loss_scaling_factor=high", "engine.overrides.model.mtp_loss_scaling_factor: 'high' is not"),
        ("model.num_attention_heads=null", "engine.overrides.model.num_attention_heads: None is not int"),
        ("dataset=7", "engine.overrides.dataset: GPTDatasetConfig is a section, not 7"),
        ("optimizer.lr=1.0", "another setting decides this\n  set optimizer.lr"),
    ],
)
def test_a_wrong_override_is_our_error(name: str, override: str, message: str, tmp_path: Path, data: Artifact) -> None:
    said = refusal(name, tmp_path, data, f"++engine.overrides.{override}")
    assert said.startswith("command line: engine.overrides.")
    assert message in said


def test_composing_says_nothing_of_storage_that_nobody_set_up(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """A package that comes with Megatron puts a plugin into Hydra."""
    from hydra_plugins import hydra_msc_plugin

    assert hydra_msc_plugin.__all__
    config_of("pretrain", "tiny")
    assert [record.getMessage() for record in caplog.records] == []
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("name", RECIPES["pretrain"])
def test_a_right_override_wins_over_the_recipe(name: str, tmp_path: Path, data: Artifact) -> None:
    container = build(name, tmp_path, data, "++engine.overrides.model.moe_aux_loss_coeff=0.5")
    assert container.model.moe_aux_loss_coeff == 0.5


def test_a_tiny_model_has_every_setting_of_ours(tmp_path: Path, data: Artifact) -> None:
    from nemotron_engines.megatron_bridge.translate import build_config

    tiny = task_of("pretrain", "tiny", tmp_path, data, "engine=megatron_bridge")
    container = build_config(tiny)
    model, scheduler = container.model, container.scheduler
    assert (model.hybrid_layer_pattern, model.hidden_size, model.num_moe_experts) == ("MEM*EME", 64, 8)
    ours, train = tiny.config.scheduler, tiny.config.train
    assert (scheduler.lr_decay_style, scheduler.lr_wsd_decay_iters) == ("WSD", ours.lr_wsd_decay_iters)
    assert scheduler.lr_decay_iters == train.train_iters
    assert (container.train.micro_batch_size, container.train.global_batch_size) == (8, 8)
    assert (container.validation.eval_interval, container.validation.eval_iters) == (train.eval_interval, 8)
    assert container.mixed_precision.fp32
    assert container.peft is None
