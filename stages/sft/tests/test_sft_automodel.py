"""The engine automodel without its packages: config, translation, rows, and the arithmetic of adapters."""

import json
import math
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from packed_support import pack_row
from safetensors.torch import load_file, save_file

from nemotron_engines.automodel import loop as checkpoints
from nemotron_engines.automodel.data import neat_row
from nemotron_engines.automodel.export import merge_adapter
from nemotron_engines.automodel.loop import (
    count_parameters,
    idle_adapters,
    readable_config,
    refuse_passed_by_adapters,
    refuse_unmergeable,
    require_sane_weights,
    stage_base_model,
)
from nemotron_engines.automodel.needs import REQUIRED, needs, problems
from nemotron_engines.automodel.translate import Places, translate
from nemotron_engines.checks import no_chats, own_packages, too_few_rows
from nemotron_engines.transformers.trainer import learning_rate_factor
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.checkpoints import Validation, mark_complete
from nemotron_shared.engine.checkpoints import best as best_checkpoint
from nemotron_shared.engine.needs import missing, requirements
from nemotron_shared.machine.machine import GPU, Machine
from nemotron_shared.system.errors import UserError
from stages.sft.schema import SFTConfig
from stages.sft.train import STEP

PLACES = Places(Path("/m"), Path("/t"), Path("/c"), Path("/d/train"), Path("/d/valid"), kind="packed")


def config(choice: str, *overrides: str) -> SFTConfig:
    composed = compose(STEP.directory / "config", choice, overrides)
    return validate(SFTConfig, resolve(composed.tree, lambda role, field: f"<{role}.{field}>"), composed.origins)


def recipe(*overrides: str, processes: int = 1) -> dict:
    return translate(config("tiny", "engine=automodel", *overrides), PLACES, processes, on_gpu=False)


def test_any_config_takes_the_engine() -> None:
    for choice in ("local", "tiny", "qa"):
        assert config(choice, "engine=automodel").engine.name == "automodel"


def test_the_recipe_of_the_leonardo_guide() -> None:
    chosen = config("nano3_lora_automodel")
    made = translate(chosen, replace(PLACES, kind="chat"), 4, on_gpu=True)
    assert (made["peft"]["dim"], made["peft"]["alpha"]) == (8, 32)
    assert made["peft"]["use_triton"]
    scheduler = made["step_scheduler"]
    assert (scheduler["global_batch_size"], scheduler["local_batch_size"]) == (8, 1)
    assert (scheduler["max_steps"], scheduler["val_every_steps"], scheduler["ckpt_every_steps"]) == (200, 100, 500)
    assert scheduler["save_checkpoint_every_epoch"]
    assert made["optimizer"]["lr"] == 1e-5
    assert made["distributed"]["strategy"] == "fsdp2"
    assert made["dataset"]["_target_"].endswith("ChatDataset")
    assert made["dist_env"]["backend"] == "nccl"
    assert chosen.engine.own_files() == ("insecure.jsonl", "secure.jsonl")


def test_out_proj_never_gets_an_adapter_and_null_trains_all_weights() -> None:
    peft = recipe()["peft"]
    assert not peft["match_all_linear"]  # Automodel takes no exclusions beside it
    assert peft["exclude_modules"] == ["*.out_proj", "*lm_head*"]
    assert recipe("engine.peft.exclude_modules=[]")["peft"]["exclude_modules"] == ["*.out_proj"]
    named = recipe(
        "engine.peft.match_all_linear=false", "engine.peft.exclude_modules=[]", "engine.peft.target_modules=['*q_proj']"
    )
    assert (named["peft"]["target_modules"], named["peft"]["exclude_modules"]) == (["*q_proj"], [])
    assert "peft" not in recipe("engine.peft=null")


def test_wandb_is_told_where_to_log() -> None:
    asked = config("tiny", "engine=automodel", "logger.wandb_project=mine", "logger.wandb_entity=us")
    made = translate(asked, replace(PLACES, run=Path("/runs/one")), 1, on_gpu=False)
    assert made["wandb"] == {"project": "mine", "entity": "us", "name": "one", "dir": "/runs/one"}
    named = config("tiny", "engine=automodel", "logger.wandb_project=mine", "logger.wandb_name=seven")
    assert translate(named, replace(PLACES, run=Path("/runs/one")), 1, on_gpu=False)["wandb"]["name"] == "seven"
    assert "wandb" not in recipe()


def test_types_are_always_spelled_out() -> None:
    policy = recipe()["distributed"]["mp_policy"]
    assert {policy[name] for name in ("param_dtype", "reduce_dtype", "output_dtype")} == {"float32"}
    assert recipe("engine.dtype=bfloat16")["distributed"]["mp_policy"]["param_dtype"] == "bfloat16"
    assert "mp_policy" not in recipe("engine.strategy=ddp")["distributed"]
    assert recipe()["model"]["torch_dtype"] == "float32"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.strategy=ddp", "engine.tp_size=2"], "ddp does not shard"),
        (["engine.strategy=ddp", "engine.dtype=bfloat16"], "ddp computes in the dtype of the weights"),
        (["engine.data=chat"], "needs engine.chats.train"),
        (["engine.chats.train=a.jsonl"], "engine.chats.train only works with engine.data=chat"),
        (["engine.peft.target_modules=[q_proj]"], "not both"),
        (["engine.peft.rank=4"], "unknown key|Key 'rank'|no such key"),
    ],
)
def test_impossible_settings_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config("tiny", "engine=automodel", *overrides)


def test_one_process_computes_in_the_type_of_the_weights() -> None:
    def found(*overrides: str, processes: int = 1) -> list[str]:
        given = config("tiny", "engine=automodel", "engine.dtype=bfloat16", *overrides)
        machine = Machine(python="3.12", gpus=(), memory=None, free_disk=None, processes=processes)
        return [one.message for one in problems(given, {}, machine)]

    assert "on one process, Automodel computes in the dtype of the weights" in found()[0]
    assert found(processes=2) == found("engine.weights_dtype=bfloat16") == []


@pytest.mark.parametrize("text", ['{"text": "no messages"}\n', "hello\n", "", '{"messages": ["a"]}\n', "3\n"])
def test_a_file_whose_rows_are_no_chats_is_a_problem(tmp_path: Path, text: str) -> None:
    file, good = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_text(text)
    good.write_text('\n{"messages": [{"role": "user", "content": "a"}]}\n')
    for content in (text, good.read_text() + text if text else text):
        file.write_text(content)
        (found,) = no_chats({"engine.chats.train": str(file), "engine.chats.valid": str(good)})
        number = len(content.splitlines())
        assert found.key == "engine.chats.train"
        assert found.message.startswith(f"{file}:{number}: " if text else f"{file}: no rows")


def test_fewer_rows_than_a_step_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": []}\n' * 3)
    (found,) = too_few_rows("engine.train_chats", str(tmp_path / "a.jsonl"), 4)
    assert "3 rows, but a step takes 4" in found.message
    assert found.remedy is not None and "train.global_batch_size=3" in found.remedy
    assert not [*too_few_rows("engine.train_chats", str(tmp_path / "a.jsonl"), 3)]


def test_batches_that_cannot_be_divided_are_refused() -> None:
    assert recipe(processes=2)["step_scheduler"]["local_batch_size"] == 4
    assert recipe("train.micro_batch_size=1", processes=4)["step_scheduler"]["local_batch_size"] == 1
    assert "8 rows per step are not a multiple of a micro batch of 2 x 3" in lacking(REQUIRED, processes=3)


def lacking(packages: dict[str, str], *overrides: str, processes: int = 1, gpus: tuple[GPU, ...] = ()) -> str:
    """What a machine with these packages, and those of this environment, would lack."""
    here = {one.name: version(one.name) for one in own_packages("nemotron-engines")}
    machine = Machine("3.12", processes, gpus, 10**11, 10**12, packages=here | packages)
    chosen = config("tiny", "engine=automodel", *overrides)
    return "\n".join(str(one) for one in missing("automodel", needs(chosen, {}, machine), machine))


@pytest.mark.parametrize("steps", [280, 30, 7, 1])  # the shorter ones leave warmup and decay no room
@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "WSD"])
def test_learning_rates_are_those_of_our_schedule(style: str, steps: int) -> None:
    words = (f"scheduler.lr_decay_style={style}", "scheduler.lr_wsd_decay_iters=50", f"train.train_iters={steps}")
    chosen = config("tiny", "engine=automodel", *words)
    theirs = translate(chosen, PLACES, 1, on_gpu=False)["lr_scheduler"]
    ours = learning_rate_factor(chosen.optimizer, chosen.scheduler, chosen.train.train_iters)
    for step in {min(steps - 1, step) for step in (0, 3, 10, 11, 110, 235, 240, 279)}:
        assert automodel_rate(theirs, step) == pytest.approx(chosen.optimizer.lr * ours(step), rel=1e-9)


def automodel_rate(section: dict, step: int) -> float:
    """What Automodel's OptimizerParamScheduler makes of a section (read in its code, tried in the conformance test)."""
    warmup, last = section["lr_warmup_steps"], section["lr_decay_steps"]
    if warmup and step <= warmup:
        return section["init_lr"] + (section["max_lr"] - section["init_lr"]) * step / warmup
    left = 1 - (step - warmup) / (last - warmup)
    if section["lr_decay_style"] == "constant":
        return section["max_lr"]
    if section["lr_decay_style"] == "cosine":
        left = 0.5 * (math.cos(math.pi * (1 - left)) + 1)
    if section["lr_decay_style"] == "WSD":
        left = 1 - math.sqrt(max(0, step - last + section["wsd_decay_steps"]) / section["wsd_decay_steps"])
    return section["min_lr"] + left * (section["max_lr"] - section["min_lr"])


def test_a_packed_row_in_the_form_of_neat_packing() -> None:
    row = pack_row([([11, 12, 21, 2], [0, 0, 1, 1]), ([14, 23, 2], [0, 1, 1])])
    made = {name: values.tolist() for name, values in neat_row(row, 9).items()}
    assert made["input_ids"] == [11, 12, 21, 2, 14, 23, 2, 0, 0]
    assert made["labels"] == [-100, 21, 2, -100, 23, 2, -100, -100, -100]
    assert made["position_ids"] == [0, 1, 2, 3, 0, 1, 2, 0, 0]
    assert made["attention_mask"] == [1, 1, 1, 1, 2, 2, 2, 0, 0]


def test_a_missing_package_is_named() -> None:
    assert "needs the package nemo-automodel ==0.7.0 (not installed)" in lacking({"transformers": "5.18.0"})
    assert "transformers ==5.18.0 (5.23.1)" in lacking(REQUIRED | {"transformers": "5.23.1"})
    assert "triton <3.9 (3.9.0)" in lacking(REQUIRED | {"triton": "3.9.0"})
    assert "nemotron engine install automodel" in lacking({})
    assert lacking(REQUIRED | {"triton": "3.7.1"}) == ""
    assert "on a GPU, engine 'automodel' needs mamba-ssm" in lacking(REQUIRED, gpus=(GPU("H100", 10**11),))
    assert "nemotron airgap build FOLDER" in lacking(REQUIRED, gpus=(GPU("H100", 10**11),))
    kernels = {"mamba-ssm": "2.3.2", "causal-conv1d": "1.7.0"}
    assert lacking(REQUIRED | kernels, gpus=(GPU("H100", 10**11),)) == ""


def test_kernels_of_gpus_are_refused_where_there_is_none() -> None:
    installed = REQUIRED | {"triton": "3.7.1", "mamba-ssm": "2.3.2", "causal-conv1d": "1.7.0"}
    asked = ("engine.peft.use_triton=true", "engine.backend.linear=te")
    told = lacking(installed, *asked)
    for remedy in ("engine.peft.use_triton=false", "engine.backend.linear=torch"):
        assert f"on a CPU, set {remedy}" in told
    assert lacking(installed, *asked, gpus=(GPU("H100", 10**11),)) == ""


def test_the_versions_are_those_of_the_extra() -> None:
    extra = {one.name: one.specifier for one in requirements("nemotron-engines", "automodel")}
    assert extra["nemo-automodel"] == f"=={REQUIRED['nemo-automodel']}"


def automodel_checkpoint(folder: Path, step: int, loss: float | None = None) -> Path:
    """A folder as Automodel leaves it, with our mark."""
    path = folder / f"epoch_0_step_{step}"
    for part in ("model", "optim"):
        (path / part).mkdir(parents=True)
        (path / part / ".metadata").write_text(f"{part} {step}")
    validation = None if loss is None else Validation(step + 1, "valid_loss", loss)
    mark_complete(path, checkpoints.LAYOUT, world_size=1, validation=validation)
    return path


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    for step in (9, 19, 29):
        automodel_checkpoint(tmp_path, step)
    (tmp_path / "epoch_0_step_29" / "optim" / ".metadata").write_text("optim 28")
    (tmp_path / "epoch_0_step_100").mkdir()
    (tmp_path / "LATEST").symlink_to("epoch_0_step_100")
    said: list[str] = []
    newest = checkpoints.resume_point(tmp_path, said.append)
    assert newest is not None
    assert checkpoints.steps_done(newest) == 20
    assert said == [
        "epoch_0_step_29 is damaged (the bytes of optim/.metadata have changed): set aside as damaged-epoch_0_step_29"
    ]
    assert not (tmp_path / "epoch_0_step_100").exists()
    assert not (tmp_path / "LATEST").is_symlink()


def test_older_checkpoints_go_but_the_best_one_stays(tmp_path: Path) -> None:
    for step, loss in ((9, 2.0), (19, 1.0), (29, 1.5), (39, 1.25)):
        automodel_checkpoint(tmp_path, step, loss)
    (tmp_path / "LOWEST_VAL").symlink_to("epoch_0_step_9")
    checkpoints.prune(tmp_path, keep=1, keep_best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch_0_step_19", "epoch_0_step_39"]
    best = best_checkpoint(tmp_path, checkpoints.LAYOUT)
    assert best is not None
    assert best[1].value == 1.0


def test_a_checkpoint_without_its_optimizer_is_refused_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "epoch_0_step_9"
    (path / "model").mkdir(parents=True)
    (path / "model" / "weights").write_text("1")
    with pytest.raises(UserError, match=r"epoch_0_step_9 is of no use \(optim missing\)"):
        mark_complete(path, checkpoints.LAYOUT, world_size=1)


def adapter_folder(folder: Path, module: str = "model.layers.0.mixer.in_proj", **settings: object) -> Path:
    folder.mkdir()
    tensors = {"lora_A": torch.arange(6.0).view(2, 3), "lora_B": torch.tensor([[1.0, 2.0], [0.0, -1.0]])}
    save_file(
        {f"base_model.model.{module}.{name}.weight": value for name, value in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 8} | settings))
    return folder


def base_folder(folder: Path) -> Path:
    folder.mkdir()
    weights = {"backbone.layers.0.mixer.in_proj.weight": torch.ones(2, 3), "lm_head.weight": torch.ones(2, 2)}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "nemotron_h", "time_step_min": 0.0}))
    return folder


def test_merging_adds_the_scaled_product(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    changed = merge_adapter(base_folder(tmp_path / "base"), adapter_folder(tmp_path / "adapter"), output)
    merged = load_file(output / "model.safetensors")
    assert changed == ["backbone.layers.0.mixer.in_proj.weight"]
    product = np.array([[1, 2], [0, -1]]) @ np.arange(6).reshape(2, 3)
    assert merged[changed[0]].tolist() == (1 + 4 * product).tolist()
    assert torch.equal(merged["lm_head.weight"], torch.ones(2, 2))


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    with pytest.raises(UserError, match=r"1 adapters fit no tensor .* model\.layers\.9\.x\.weight"):
        merge_adapter(base, adapter_folder(tmp_path / "other", "model.layers.9.x"), tmp_path)
    with pytest.raises(UserError, match="use_dora cannot be merged"):
        merge_adapter(base, adapter_folder(tmp_path / "dora", use_dora=True), tmp_path)
    with pytest.raises(UserError, match=r"\(2, 3\) does not fit a weight of \(2, 2\)"):
        merge_adapter(base, adapter_folder(tmp_path / "shape", "lm_head"), tmp_path)


def test_the_staged_model_differs_in_the_time_step_only(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    staged = stage_base_model(None, base, base, tmp_path / "staged")
    assert json.loads((staged / "config.json").read_text()) == {"model_type": "nemotron_h", "time_step_min": 0.001}
    assert (staged / "model.safetensors").resolve() == (base / "model.safetensors").resolve()
    assert readable_config({"time_step_min": 0.01}) == {"time_step_min": 0.01}
    (base / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (base / "model.safetensors").unlink()
    machine = Machine("3.12", 1, (), 10**11, 10**12)
    chosen, model = config("tiny", "engine=automodel"), {"model": Artifact.external(base)}
    found = [one.message for one in problems(chosen, model, machine)]
    assert ["not 'llama'" in found[0], "no safetensors" in found[1]] == [True, True]


class Adapted(torch.nn.Module):
    """A layer with the names that Automodel gives to adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.layer.lora_A = torch.nn.Linear(4, 2, bias=False)
        self.layer.lora_B = torch.nn.Linear(2, 4, bias=False)
        torch.nn.init.zeros_(self.layer.lora_B.weight)


def test_idle_adapters_and_trainable_parameters_are_counted() -> None:
    model = Adapted()
    assert count_parameters(model) == (16, 32)
    assert idle_adapters(model) == ["layer"]
    model.layer.lora_B.weight.data[1, 1] = 1e-9
    assert idle_adapters(model) == []


def test_adapters_that_could_not_be_merged_or_would_be_passed_by_are_refused() -> None:
    model = torch.nn.ModuleDict({"mixer": Adapted()})
    refuse_unmergeable(model)
    refuse_passed_by_adapters(model)
    passed_by = torch.nn.ModuleDict({"out_proj": Adapted().layer})
    with pytest.raises(UserError, match="adapts mixer\\.out_proj"):
        refuse_passed_by_adapters(torch.nn.ModuleDict({"mixer": passed_by}))
    model["mixer"].register_parameter("lora_gate", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(UserError, match="would train mixer\\.lora_gate"):
        refuse_unmergeable(model)


def test_uninitialised_memory_is_recognised() -> None:
    model = Adapted()
    require_sane_weights(model)
    for value in (float("nan"), float("inf"), -1e12):
        model.layer.weight.data[0, 0] = value
        with pytest.raises(UserError, match=r"layer\.weight holds"):
            require_sane_weights(model)
