"""Megatron-Bridge itself builds and accepts the fine-tuning recipes, at the number of processes each is made for."""

from functools import partial
from pathlib import Path

import megatron_support
import pytest
from megatron_support import RECIPES, config_of, prepared_and_stubbed, task_of

from nemotron_shared.artifacts import Artifact
from nemotron_shared.families import architecture
from nemotron_shared.system.errors import UserError

pytestmark = pytest.mark.megatron
build = partial(megatron_support.build, "sft")
refusal = partial(megatron_support.refusal, "sft")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    home = tmp_path_factory.mktemp("data") / "home"
    return prepared_and_stubbed("sft", home, "data_prep.split={train: 0.8, valid: 0.2, test: 0.0}")


@pytest.mark.parametrize("name", RECIPES["sft"])
def test_bridge_accepts_a_recipe_at_its_number_of_processes(
    name: str, tmp_path: Path, data: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    container = build(name, tmp_path, data)
    model, ours = container.model, config_of("sft", name)
    fields = architecture(ours.run.family)
    assert (model.hidden_size, model.num_moe_experts) == (fields["hidden_size"], fields["n_routed_experts"])
    assert container.train.train_iters == container.scheduler.lr_decay_iters == ours.train.train_iters
    assert container.scheduler.lr_decay_style == "cosine"
    assert container.scheduler.lr_warmup_iters == ours.scheduler.lr_warmup_iters
    assert (container.optimizer.lr, container.optimizer.adam_beta2) == (ours.optimizer.lr, ours.optimizer.adam_beta2)
    assert container.mixed_precision.bf16
    assert container.dataset.seq_length == model.seq_length == config_of("sft", "tiny").data_prep.pack_size
    assert container.checkpoint.pretrained_checkpoint.endswith(f"model-{name}/megatron")
    assert "no GPU: " in capsys.readouterr().err


@pytest.mark.parametrize("name", RECIPES["sft"])
def test_bridge_refuses_a_recipe_at_an_impossible_number(name: str, tmp_path: Path, data: Artifact) -> None:
    said = refusal(name, tmp_path, data, world_size=3)
    assert said.startswith("Megatron-Bridge refuses the configuration: ")
    assert "divisible" in said


@pytest.mark.parametrize("name", RECIPES["sft"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.train_itersX=3", "TrainingConfig has no field 'train_itersX'\n  did you mean 'train_iters'?"),
        ("model.moe_router_topk=many", "engine.overrides.model.moe_router_topk: 'many' is not int"),
        ("model.hidden_size=null", "engine.overrides.model.hidden_size: None is not int"),
        ("ddp=5", "engine.overrides.ddp: DistributedDataParallelConfig is a section, not 5"),
        ("dataset.offline_packing_specs.pad_cu=true", "PackedSequenceSpecs has no field 'pad_cu'"),
    ],
)
def test_a_wrong_override_is_our_error(name: str, override: str, message: str, tmp_path: Path, data: Artifact) -> None:
    said = refusal(name, tmp_path, data, f"++engine.overrides.{override}")
    assert said.startswith("command line: engine.overrides.")
    assert message in said


def test_super_keeps_its_prediction_blocks_and_a_model_without_gets_none(tmp_path: Path, data: Artifact) -> None:
    model = build("super3", tmp_path / "with", data).model
    assert (model.mtp_num_layers, model.mtp_hybrid_override_pattern, model.mtp_loss_scaling_factor) == (2, "*E", 0.3)
    none = ("run.model=null", "run.missing_model=random", "model.overrides.num_nextn_predict_layers=0")
    plain = task_of("sft", "super3", tmp_path, data, *none)
    from nemotron_engines.megatron_bridge.translate import build_config

    assert build_config(plain, world_size=16).model.mtp_num_layers == 0


@pytest.mark.parametrize("scheme", ["lora", "dora"])
def test_adapters_are_those_of_the_config(scheme: str, tmp_path: Path, data: Artifact) -> None:
    peft = build("nano3", tmp_path, data, f"engine.peft.scheme={scheme}", "engine.peft.dim=8").peft
    assert (type(peft).__name__.lower(), peft.dim, peft.alpha) == (scheme, 8, 32)
    assert peft.target_modules[-1] == "out_proj"


def test_an_fp8_precision_is_taken_and_a_wrong_name_refused(
    tmp_path: Path, data: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    from nemotron_engines.megatron_bridge.translate import precision

    name = "bf16_with_fp8_current_scaling_mixed"
    assert (precision(name).fp8, precision(name).fp8_recipe) == ("hybrid", "tensorwise")
    build("nano3", tmp_path / "a", data, f"engine.mixed_precision={name}")
    assert "mixed_precision.fp8" in capsys.readouterr().err  # Bridge takes it with Transformer Engine only
    with pytest.raises(UserError, match=r"engine\.mixed_precision: Bridge has no 'bf8'"):
        build("nano3", tmp_path / "b", data, "engine.mixed_precision=bf8")


def test_a_recipe_that_does_not_exist_is_refused(tmp_path: Path, data: Artifact) -> None:
    wrong = "nemotronh.nemotron_3_nano.nemotron_3_nano_finetune_config"
    with pytest.raises(UserError, match="has no recipe 'nemotron_3_nano_finetune_config'"):
        build("nano3", tmp_path / "a", data, f"engine.recipe={wrong}")
    with pytest.raises(UserError, match="not found"):
        build("nano3", tmp_path / "b", data, "engine.recipe=nemotronh.nemotron_4.x_config")


def test_packed_rows_are_neither_split_by_context_nor_batched(tmp_path: Path, data: Artifact) -> None:
    with pytest.raises(UserError, match="needs every packed sequence padded to a multiple of 4"):
        build("nano3", tmp_path / "a", data, "engine.context_parallel_size=2")
    with pytest.raises(UserError, match="Micro batch size should be 1"):
        build("nano3", tmp_path / "b", data, "train.micro_batch_size=2", "train.global_batch_size=16")
