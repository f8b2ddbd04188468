"""A file of another library keeps every value, and no training value of ours stands in for its library's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import last_json, nemotron
from test_front_door import FILES, FOREIGN, composed

from nemotron_shared.config.overrides import leaves
from nemotron_shared.system.errors import UserError

SILENT = [place for place in FILES if "automodel" in place[1] or "nemo_rl" in place[1]]
TRAINING = ("optimizer.", "scheduler.", "train.", "grpo.", "engine.peft", "engine.chats.pack", "engine.dtype")
OURS = {"train.eval_rows"}
"""Rows of a validation, which only matter where the data is ours."""


def sections(key: str) -> Iterator[str]:
    """A key, and the sections around it."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def all_said(place: tuple[str, str]) -> set[str]:
    """Keys of a foreign file that neither became a value here nor were named in a note."""
    file = FOREIGN / f"{place[1]}.yaml"
    found = composed(place[0], str(file))
    became = {origin.partition(" (")[2].removesuffix(")") for origin in found.origins.values()}
    words = {word.strip("(),:") for note in found.notes for word in note.split()}
    keys = [key for key, _ in leaves(yaml.safe_load(file.read_text()))]
    return {key for key in keys if not (became | words).intersection(sections(key))}


@pytest.mark.parametrize("place", FILES)
def test_no_key_of_a_file_is_lost(place: tuple[str, str]) -> None:
    assert all_said(place) <= {"defaults"}


@pytest.mark.parametrize("place", SILENT)
def test_no_training_value_of_ours_stands_in_for_the_librarys(place: tuple[str, str]) -> None:
    file = FOREIGN / f"{place[1]}.yaml"
    found = composed(place[0], str(file))
    values = {key for key, _ in leaves(dict(found.tree)) if key.startswith(TRAINING)} - OURS
    assert {key for key in values if not found.origins[key].startswith(file.name)} <= {"engine.peft"}


def automodel(folder: Path, name: str = "theirs.yaml", **changes: Any) -> str:
    """A file of Automodel's with some sections changed; None takes one away."""
    content = yaml.safe_load((FOREIGN / "automodel_silent.yaml").read_text()) | changes
    file = folder / name
    file.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return str(file)


@pytest.mark.parametrize("name", ["default.yaml", "local.yaml", "theirs.yaml"])
def test_names_of_files_beside_it_mean_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text("optimizer: {lr: 5}\n")
    (tmp_path / "local.yaml").write_text("optimizer: {lr: 5}\n")
    assert composed("sft", automodel(tmp_path, name)).tree.optimizer.lr == 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1, "rng": {"seed": 2}}, r"seed and rng.seed.*run.seed"),
        ({"packed_sequence": {"packed_sequence_size": 64}, "max_grad_norm": 1.0, "clip_grad_norm": {"max_norm": 2.0}},
         "optimizer.clip_grad"),
        ({"optimizer": {"_target_": "mine.Lion", "lr": 1e-4}}, "the defaults of mine.Lion for optimizer.betas"),
        ({"peft": {"match_all_linear": True, "target_modules": ["q_proj"]}}, "only one of"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        composed("sft", automodel(tmp_path, **changes))


@pytest.mark.parametrize(
    ("peft", "chosen"),
    [
        ({}, (False, ["*_proj"], [])),
        ({"match_all_linear": True}, (True, [], [])),
        ({"target_modules": "*.q_proj", "match_all_linear": False}, (False, ["*.q_proj"], [])),
        ({"exclude_modules": ["*.out_proj"], "match_all_linear": False}, (True, [], ["*.out_proj"])),
    ],
)
def test_adapters_are_where_automodel_puts_them(peft: dict[str, Any], chosen: tuple[Any, ...], tmp_path: Path) -> None:
    found = composed("sft", automodel(tmp_path, peft={"dim": 4} | peft)).tree.engine.peft
    assert (found.match_all_linear, found.target_modules, found.exclude_modules) == chosen


def test_a_section_is_taken_away_on_the_command_line() -> None:
    tree = composed("sft", "nano3_lora_automodel", "peft=null", "lr_scheduler=null").tree
    assert tree.engine.peft is None
    assert tree.scheduler.lr_decay_style == "constant"


def test_layers_of_adapters_are_named_on_the_command_line() -> None:
    peft = composed("sft", "nano3_lora_automodel", "peft.target_modules=[q_proj]").tree.engine.peft
    assert (peft.target_modules, peft.match_all_linear, peft.exclude_modules) == (["q_proj"], False, [])


def bridge(folder: Path, **changes: Any) -> str:
    """NVIDIA's file of Super's fine-tuning, with some sections changed."""
    content = yaml.safe_load((FOREIGN / "bridge_sft.yaml").read_text()) | changes
    (folder / "theirs.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "theirs.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": {"load": "/a", "pretrained_checkpoint": "/b"}}, "checkpoint.* both say what run.model is here"),
        ({"recipe": {"_target_": "megatron.bridge.recipes.qwen.qwen3.qwen3_8b_config"}}, "qwen3_8b_config"),
        ({"recipe": {}}, "recipe._target_ is not set"),
        ({"peft": {"_target_": "megatron.bridge.peft.canonical_lora.CanonicalLoRA"}}, "CanonicalLoRA"),
    ],
)
def test_what_bridge_would_take_is_known_or_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        composed("sft", bridge(tmp_path, **changes))


def test_a_run_goes_on_from_its_own_checkpoints_by_itself(tmp_path: Path) -> None:
    found = composed("sft", bridge(tmp_path, checkpoint={"load": "/mine", "save": "/mine"}))
    assert found.tree.run.model == "super3-pretrain-model:latest"
    assert [note for note in found.notes if "checkpoint.load is checkpoint.save" in note]


def test_a_pretraining_has_the_length_of_rows_that_the_file_says(tmp_path: Path) -> None:
    content = yaml.safe_load((FOREIGN / "bridge_pretrain.yaml").read_text())
    content["recipe"] |= {"seq_length": 4096, "context_parallelism": 2}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(content))
    tree = composed("pretrain", str(tmp_path / "theirs.yaml")).tree
    assert (tree.train.seq_length, tree.engine.context_parallel_size) == (4096, 2)


@pytest.mark.parametrize("family", ["nano3", "super3", "ultra3", "lightning35"])
@pytest.mark.parametrize("stage", ["pretrain", "sft"])
def test_a_data_preparation_is_for_every_family(family: str, stage: str, run, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    chats = {"chat_template": "super3"} if stage == "sft" else {"text_field": "body"}
    file.write_text(yaml.safe_dump({"blend_path": "rows.jsonl", "output_dir": "/o", "num_shards": 2} | chats))
    tree = composed(stage, str(file), f"run.family={family}").tree
    assert tree.data_prep.source == "rows.jsonl"
    if (family, stage) == ("nano3", "pretrain"):
        words = ["nano3", "data", "prep", "pretrain", "-c", str(file), "--dry-run", "--json"]
        assert not [one for one in last_json(run(*nemotron(*words), ok=False))["problems"] if "family" in str(one)]


@pytest.mark.parametrize("words", [["config", "translate"], ["nano3", "data", "prep", "sft", "--dry-run", "-c"]])
def test_an_unknown_key_of_a_data_preparation_is_one_error(words: list[str], run, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text("blend_path: rows.jsonl\noutput_dir: /o\nmessages_fild: chats\n")
    said = run(*nemotron(*words, str(file)), ok=False)
    assert "theirs.yaml:3: unknown key 'messages_fild'" in said.stdout + said.stderr
    assert "did you mean 'messages_field'?" in said.stdout + said.stderr
    assert said.returncode == 2


def test_rows_of_an_artifact_come_before_files(tmp_path: Path) -> None:
    content = {
        "run": {"data": "nano3-rl-data:latest", "model": "nano3-sft-model:latest", "env": {"container": "image"}},
        "policy": {"model_name": "${art:model,path}"},
        "data": {"train_jsonl_fpath": "/path/to/train.jsonl"},
        "env": {"should_use_nemo_gym": True},
    }
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(content))
    found = composed("rl", str(tmp_path / "theirs.yaml"))
    assert (found.tree.run.data, found.tree.run.model) == ("nano3-rl-data:latest", "nano3-sft-model:latest")
    assert (found.tree.engine.train_rows, found.tree.engine.container) == (None, "image")
    assert [note for note in found.notes if "data.train_jsonl_fpath has no effect here" in note]


def test_a_recipe_with_an_earlier_name_is_one_of_todays(tmp_path: Path) -> None:
    earlier = "megatron.bridge.recipes.nemotronh.nemotron_3_nano.nemotron_3_nano_finetune_config"
    for peft, kind, scheme in ((None, "sft", None), ("lora", "peft", "lora")):
        tree = composed("sft", bridge(tmp_path, recipe={"_target_": earlier, "peft": peft})).tree
        assert tree.engine.recipe.endswith(f"nemotron_3_nano_{kind}_config")
        assert (tree.engine.peft.scheme, tree.run.family) == (scheme, "nano3")


def test_epochs_are_what_nemo_rl_is_told(run) -> None:
    words = ["nano3", "rl", "-c", str(FOREIGN / "nemo_rl_silent.yaml"), "--dry-run", "--json"]
    assert json.dumps(last_json(run(*nemotron(*words), ok=False))).count('"max_num_epochs": 2') >= 1
