"""Megatron-Bridge's own keys as NVIDIA's recipes write them, and what they are here."""

from typing import Any

from nemotron_shared.config.dialects import Dialect, Meaning, NoEffect, Refused, Settings, model_reference

RECIPES = "megatron.bridge.recipes."
PACKED = NoEffect("the packed rows of run.data say how long they are")
PROFILE = NoEffect("which machines run it is said where it is started")
LAYOUT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
)  # fmt: skip


def recipe(value: Any) -> Settings:
    """The function that a recipe calls; its module's package is always Bridge's."""
    return {"engine.recipe": str(value).removeprefix(RECIPES)}


def peft(value: Any) -> Settings:
    """The name of a scheme, or none."""
    return {"engine.peft.scheme": value}


def start(value: Any) -> Settings:
    """A checkpoint to go on from, with its optimizer and step."""
    return {} if value is None else {"run.model": str(value), "engine.start_from": "state"}


def pretrained(value: Any) -> Settings:
    """A checkpoint whose weights are taken; a reference to the run's own model says nothing new."""
    return {} if value is None or "art:model" in str(value) else {"run.model": model_reference(value)}


def project(name: str) -> Any:
    """W&B's project or entity; a reference to the section of a profile is left to the profile."""
    return lambda value: {} if value is None or "run.wandb" in str(value) else {f"logger.{name}": value}


SAME = (
    "train.train_iters", "train.global_batch_size", "train.micro_batch_size", "checkpoint.save_interval",
    "checkpoint.most_recent_k", "logger.log_interval", "optimizer.clip_grad",
    *(f"optimizer.{name}" for name in ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")),
    *(f"scheduler.{name}" for name in ("lr_decay_style", "lr_warmup_iters", "lr_wsd_decay_iters")),
)  # fmt: skip
KEYS: dict[str, Meaning] = {
    **{key: key for key in SAME},
    **{f"model.{name}": f"engine.{name}" for name in LAYOUT},
    "run.data": "run.data",
    "run.model": lambda value: {"run.model": model_reference(value)},
    "run.env.container": "engine.container",
    "run.env": PROFILE,
    "run.wandb": PROFILE,
    "recipe._target_": recipe,
    "recipe.peft": peft,
    "recipe.packed_sequence": PACKED,
    "recipe.per_split_data_args_path": NoEffect("run.data names the data"),
    "data": NoEffect("run.data names the data"),
    "dataset.nano3_packed_sft_dir": PACKED,
    "dataset.super3_packed_sft_dir": PACKED,
    "dataset.seq_length": PACKED,
    "dataset.packed_sequence_specs": PACKED,
    "dataset.blend_per_split": Refused("set run.data"),
    "train.eval_iters": Refused("set train.eval_rows, the rows of a validation"),
    "validation.eval_iters": Refused("set train.eval_rows, the rows of a validation"),
    "model.seq_length": NoEffect("train.seq_length, or the packed rows, say how long rows are"),
    "validation.eval_interval": "train.eval_interval",
    "rng.seed": "run.seed",
    "scheduler.lr_wsd_decay_style": NoEffect("the last part of WSD always falls with the square root"),
    "checkpoint.save": NoEffect("checkpoints lie in the run's folder, below run.home"),
    "checkpoint.load": start,
    "checkpoint.pretrained_checkpoint": pretrained,
    "checkpoint.finetune": NoEffect("engine.start_from says whether only weights are taken"),
    "convert_to_hf": NoEffect("the result is always a whole Hugging Face folder"),
    "logger.wandb_project": project("wandb_project"),
    "logger.wandb_entity": project("wandb_entity"),
    "logger.wandb_exp_name": NoEffect("W&B's run has the name of ours"),
}
SECTIONS = frozenset(
    {"train", "validation", "model", "optimizer", "scheduler", "ddp", "checkpoint", "logger", "dataset", "rng", "dist",
     "mixed_precision", "comm_overlap", "profiling", "tokenizer", "ft", "straggler", "rerun_state_machine",
     "tensor_inspect"}
)  # fmt: skip

MEGATRON_BRIDGE = Dialect(
    library="Megatron-Bridge",
    engine="megatron_bridge",
    is_its=lambda content: isinstance(content.get("recipe"), dict) or "convert_to_hf" in content,
    keys=KEYS,
    sections=SECTIONS,
)
