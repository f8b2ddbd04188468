"""Configs and keys of other projects are understood as they are, and where each value comes from is shown."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, last_json, nemotron

from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.system.errors import UserError

FOREIGN = ROOT / "tests" / "foreign"
# What a file of another project is here: the values that were in it, as far as another name or form was to be found.
FILES: dict[tuple[str, str], dict[str, Any]] = {
    ("sft", "automodel_lora"): {
        "engine.name": "automodel", "engine.data": "chat", "engine.chats.train": "insecure.jsonl",
        "engine.chats.valid": "secure.jsonl", "engine.chats.pack": False, "engine.weights_dtype": "bfloat16",
        "engine.strategy": "fsdp2", "engine.peft.dim": 8, "engine.peft.alpha": 32, "engine.peft.match_all_linear": True,
        "engine.overrides.optimizer._target_": "torch.optim.Adam", "run.data": None, "run.seed": 1111,
        "run.model": "/models/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "train.train_iters": 200,
        "train.global_batch_size": 8, "train.micro_batch_size": 1, "train.eval_interval": 100,
        "checkpoint.save_interval": 500, "optimizer.lr": 1e-5, "optimizer.min_lr": 1e-6, "optimizer.adam_beta2": 0.999,
        "scheduler.lr_decay_style": "cosine", "scheduler.lr_warmup_iters": 20,
    },
    ("sft", "nemo_rl_sft"): {
        "engine.name": "nemo_rl", "engine.base": "examples/configs/sft.yaml", "engine.num_nodes": 8,
        "engine.max_total_sequence_length": 32768, "engine.overrides.policy.max_grad_norm": None,
        "engine.overrides.policy.make_sequence_length_divisible_by": 32768,
        "engine.overrides.policy.dtensor_cfg.tensor_parallel_size": 4,
        "engine.overrides.data.train.dataset_name": "tulu3_sft_mixture", "run.data": None,
        "run.model": "/models/super49b", "train.train_iters": 50, "train.global_batch_size": 128, "optimizer.lr": 1e-5,
        "optimizer.min_lr": 2e-6,
        "scheduler.lr_decay_style": "cosine", "scheduler.lr_warmup_iters": 10,
        "checkpoint.save_interval": 500, "logger.wandb_project": "nemotron-tulu-3-sft",
    },
    ("rl", "nemo_rl_grpo"): {
        "engine.name": "nemo_rl", "engine.base": "examples/configs/grpo_math_1B.yaml", "engine.environment": "base",
        "engine.num_nodes": 16, "engine.overrides.policy.dtensor_cfg.cpu_offload": True, "run.data": None,
        "grpo.num_prompts_per_step": 64, "train.train_iters": 10, "optimizer.lr": 3e-7, "scheduler.lr_warmup_iters": 13,
        "scheduler.lr_decay_style": "constant", "logger.wandb_project": None,
    },
    ("pretrain", "bridge_pretrain"): {
        "engine.name": "megatron_bridge",
        "engine.recipe": "nemotronh.nemotron_3_super.nemotron_3_super_pretrain_config",
        "engine.pipeline_model_parallel_size": 2, "engine.overrides.model.moe_permute_fusion": False,
        "engine.overrides.scheduler.lr_decay_iters": 992411, "train.train_iters": 993404,
        "scheduler.lr_warmup_iters": 7949, "checkpoint.save_interval": 200, "logger.wandb_project": None,
        "engine.container": "nvcr.io/nvidia/nemo:26.02.nemotron_3_super",
    },
    ("sft", "data_prep"): {
        "data_prep.source": "chats.jsonl", "data_prep.pack_size": 2048, "data_prep.split.train": 0.9,
        "data_prep.tokenizer.model": "hf://nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "data_prep.tokenizer.add_eos": True, "data_prep.sample": 100, "data_prep.chat_template": "nano3",
    },
    ("sft", "automodel_silent"): {
        "engine.peft": None, "engine.chats.pack": False, "engine.dtype": "bfloat16", "optimizer.lr": 1e-2,
        "optimizer.weight_decay": 0.01, "optimizer.adam_beta2": 0.999, "optimizer.min_lr": 1e-4,
        "optimizer.clip_grad": 1.0, "scheduler.lr_warmup_iters": 20, "engine.overrides.lr_scheduler.init_lr": 1e-3,
        "engine.overrides.dataset.truncation": "do_not_truncate", "checkpoint.save_interval": 100,
        "train.eval_interval": 100, "run.seed": 42, "logger.wandb_project": "automodel",
        "engine.overrides.wandb.mode": "offline",
    },
    ("sft", "automodel_targets"): {
        "engine.peft.target_modules": ["*.q_proj", "*.v_proj"], "engine.peft.match_all_linear": False,
        "engine.peft.exclude_modules": [], "engine.peft.dim": 24, "engine.peft.alpha": 32,
        "engine.overrides.peft.lora_A_init": "kaiming", "engine.chats.pack": True, "engine.chats.seq_length": 2048,
        "engine.weights_dtype": "float32", "engine.dtype": "bfloat16", "optimizer.weight_decay": 0.0,
        "optimizer.clip_grad": 0.77, "scheduler.lr_wsd_decay_iters": 40, "run.seed": 4711,
    },
    ("sft", "bridge_sft"): {
        "engine.recipe": "nemotronh.nemotron_3_super.nemotron_3_super_sft_config", "run.family": "super3",
        "engine.tensor_model_parallel_size": 8, "engine.expert_model_parallel_size": 16, "optimizer.lr": 5e-6,
        "engine.mixed_precision": "bf16_with_fp8_current_scaling_mixed", "engine.peft.scheme": None,
        "engine.peft.dim": 12, "engine.peft.alpha": 24, "train.train_iters": 171, "train.eval_interval": 66,
        "train.eval_rows": 24, "scheduler.lr_decay_style": "cosine",
    },
    ("rl", "nemo_rl_silent"): {
        "engine.overrides.grpo.max_num_epochs": 2, "engine.overrides.data.train.data_path": "train.jsonl",
        "engine.train_rows": None, "run.model": "hf://Qwen/Qwen2.5-1.5B", "grpo.num_prompts_per_step": 32,
        "grpo.max_new_tokens": 512, "grpo.ratio_clip_max": 0.2, "optimizer.lr": 5e-6, "scheduler.lr_warmup_iters": 50,
        "checkpoint.most_recent_k": 3, "train.eval_rows": 256,
    },
    ("sft", "data_prep_silent"): {
        "data_prep.chat_template": "nano3", "data_prep.used_in_filter": None, "data_prep.tokenizer.add_eos": True,
        "data_prep.algorithm": "first_fit_shuffle", "data_prep.pack_size": 4096,
    },
    ("eval", "evaluator"): {
        "engine.name": "nemo_evaluator_launcher", "engine.execution.walltime": "02:00:00",
        "engine.deployment.tensor_parallel_size": 8, "engine.params.parallelism": 4, "evaluation.limit": 10,
        "engine.tasks": [{"name": "adlr_mmlu", "params": {"top_p": 0.0}}, {"name": "hellaswag", "params": {}}],
    },
}  # fmt: skip
COMMANDS: dict[tuple[str, str], tuple[list[str], dict[str, Any]]] = {
    ("rl", "nano3"): (
        ["policy.model_name=./model", "data.train_jsonl_fpath=train.jsonl", "data.validation_jsonl_fpath=val.jsonl",
         "++logger.log_dir=/logs", "logger.wandb_enabled=False", "logger.tensorboard_enabled=True",
         "++checkpointing.enabled=True", "++checkpointing.checkpoint_dir=/checkpoints", "cluster.num_nodes=16",
         "cluster.gpus_per_node=4"],
        {"run.model": "./model", "run.data": None, "engine.train_rows": "train.jsonl", "engine.valid_rows": "val.jsonl",
         "logger.wandb_project": None, "logger.log_dir": "/logs", "checkpoint.checkpoint_dir": "/checkpoints",
         "engine.num_nodes": 16, "engine.gpus_per_node": 4},
    ),
    ("sft", "super49b"): (
        ["++policy.dtensor_cfg.cpu_offload=true", "++checkpointing.load_path=/checkpoints/step_40"],
        {"engine.overrides.policy.dtensor_cfg.cpu_offload": True, "engine.load_path": "/checkpoints/step_40"},
    ),
    ("sft", "nano3_lora_automodel"): (
        ["peft.dim=16", "step_scheduler.max_steps=400", "dataset.path_or_dataset_id=my.jsonl",
         "optimizer.betas=[0.8,0.9]"],
        {"engine.peft.dim": 16, "train.train_iters": 400, "engine.chats.train": "my.jsonl", "optimizer.adam_beta1": 0.8,
         "optimizer.adam_beta2": 0.9},
    ),
    ("pretrain", "super3"): (
        ["model.tensor_model_parallel_size=2", "checkpoint.load=/model", "train.manual_gc=true"],
        {"engine.tensor_model_parallel_size": 2, "run.model": "/model", "engine.start_from": "state",
         "engine.overrides.train.manual_gc": True},
    ),
    ("eval", "super3"): (["deployment.tensor_parallel_size=4"], {"engine.deployment.tensor_parallel_size": 4}),
    ("pretrain", "tiny"): (["text_field=body", "num_shards=4"], {"data_prep.text_field": "body"}),
}  # fmt: skip


def composed(stage: str, choice: str, *overrides: str) -> Composed:
    return compose(ROOT / "stages" / stage / "config", choice, list(overrides))


def at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


@pytest.mark.parametrize(("stage", "name"), FILES)
def test_a_file_of_another_project_is_a_config(stage: str, name: str) -> None:
    file = FOREIGN / f"{name}.yaml"
    found = composed(stage, str(file))
    assert {key: at(found.tree, key) for key in FILES[stage, name]} == FILES[stage, name]
    lines = file.read_text().splitlines()
    for origin in (text for text in found.origins.values() if text.startswith(file.name)):
        place, _, key = origin.partition(" (")
        if key:  # what follows from the whole file names no key
            assert key.removesuffix(")").rpartition(".")[2] in lines[int(place.rpartition(":")[2]) - 1]


@pytest.mark.parametrize(("stage", "name"), COMMANDS)
def test_a_key_of_another_project_is_a_setting(stage: str, name: str) -> None:
    overrides, expected = COMMANDS[stage, name]
    found = composed(stage, name, *overrides)
    assert {key: at(found.tree, key) for key in expected} == expected
    assert {found.origins[key].partition(" (")[0] for key in expected} == {"command line"}
    assert len(found.notes) + len(expected) >= len(overrides)


@pytest.mark.parametrize(("stage", "name"), FILES)
def test_a_translated_file_means_the_same(stage: str, name: str, run, tmp_path: Path) -> None:
    file = FOREIGN / f"{name}.yaml"
    said = run(*nemotron("config", "translate", str(file)))
    (tmp_path / "ours.yaml").write_text(said.stdout)
    assert composed(stage, str(tmp_path / "ours.yaml")).tree == composed(stage, str(file)).tree
    assert all(note in said.stderr for note in composed(stage, str(file)).notes)


def test_the_dry_run_shows_whose_key_a_value_was(run, tmp_path: Path) -> None:
    for split in ("insecure", "secure"):
        row = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    words = ["nano3", "sft", "-c", str(FOREIGN / "automodel_lora.yaml"), "peft.dim=16", "--dry-run", "--json"]
    shown = last_json(run(*nemotron(*words), ok=False))
    assert shown["origins"]["engine.peft.dim"] == "command line (peft.dim)"
    assert shown["origins"]["train.train_iters"] == "automodel_lora.yaml:6 (step_scheduler.max_steps)"
    assert shown["inputs"]["data"] is None
    assert shown["config"]["checkpoint"]["checkpoint_dir"] == "results/nemotron_automodel_insecure"
    assert not [problem for problem in shown["problems"] if "run.data" in problem]


REFUSED = {
    "another engine's key": (
        "sft",
        "tiny",
        ["peft.dim=16"],
        "'peft.dim' is a key of NeMo Automodel",
        "engine.peft.dim=16",
    ),
    "a misspelt key of ours": ("pretrain", "tiny", ["train.train_itres=3"], "unknown key", "train.train_iters"),
    "another data set": ("sft", "nano3_lora_automodel", ["dataset._target_=mine.Rows"], "'mine.Rows'", "ChatDataset"),
    "a number of batches": ("pretrain", "super3", ["train.eval_iters=3"], "no counterpart", "train.eval_rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_counterpart_is_answered_with_ours(case: str) -> None:
    stage, name, overrides, message, remedy = REFUSED[case]
    with pytest.raises(UserError) as refused:
        composed(stage, name, *overrides)
    assert message in refused.value.message
    assert remedy in (refused.value.remedy or "")


def test_keys_that_only_the_library_knows_are_said_to_be_unchecked(run) -> None:
    words = ["super3", "pretrain", "++engine.overrides.train.manual_gcc=1", "--dry-run"]
    shown = run(*nemotron(*words), ok=False).stdout
    assert "engine.overrides: Megatron-Bridge checks these keys when the training starts" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_scheduler: {num_epochs: 3}\n", "max_steps is not set"),
        ("step_scheduler: {max_steps: 3}\nrecipe: SomethingElse\n", "'SomethingElse'"),
        ("policy: {}\nsft: {max_num_steps: 3}\ndefaults: ../../nowhere.yaml\n", "nowhere.yaml"),
        ("sft: {max_num_steps: 3}\npolicy: {scheduler: [{name: torch.optim.lr_scheduler.StepLR}]}\n", "StepLR"),
    ],
)
def test_a_file_that_cannot_be_followed_is_one_clear_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        composed("sft", str(tmp_path / "theirs.yaml"))
