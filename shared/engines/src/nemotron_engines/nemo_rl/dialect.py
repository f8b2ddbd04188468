"""Translate NeMo-RL's own keys to ours, so that `-c` accepts its recipes unchanged."""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_engines.nemo_rl.translate import RESOLVERS
from nemotron_engines.nemo_rl.versions import VERSIONS, load_bases
from nemotron_engines.overrides import at, betas, has, merge
from nemotron_shared.config.references import bounded, computing_with, plain
from nemotron_shared.config.translation import (
    Dialect,
    Meaning,
    NoEffect,
    Refused,
    Settings,
    Whole,
    model_reference,
    only,
)
from nemotron_shared.system.errors import UserError

TORCH = "torch.optim.lr_scheduler."
STYLES = {"CosineAnnealingLR": "cosine", "LinearLR": "linear", "ConstantLR": "constant"}
LATEST = "v0.7.0"
BASE_SECTIONS = frozenset(
    {"policy", "data", "cluster", "checkpointing", "logger", "env", "defaults", "loss_fn", "teacher", "val_config"}
)

METRIC = "engine.overrides.checkpointing.metric_name"
NO_METRIC, METRIC_OF_GRPO = "val:reward", "val:accuracy"
"""The mean validation reward: its name in some of NeMo-RL's recipes, and its name in GRPO."""
FLAT = ("data.train_jsonl_fpath", "data.validation_jsonl_fpath")
DATA_FILES = (
    "data.train_jsonl_fpath", "data.train.data_path", "data.validation_jsonl_fpath", "data.validation.data_path",
)  # fmt: skip


def torch_schedule(value: Any) -> Settings:
    """A list of torch's schedules: a warm-up, its successor, and the step of the switch.

    Raises:
        UserError: schedules that we have no equivalent for.
    """
    stages = [entry for entry in value or [] if "name" in entry]
    found: Settings = {"scheduler.lr_warmup_iters": 0, "scheduler.lr_decay_style": "constant"}
    if len(stages) > 1:
        found["scheduler.lr_warmup_iters"] = stages[0]["kwargs"]["total_iters"]
    if stages:
        last = stages[-1]
        name = str(last["name"]).removeprefix(TORCH)
        if len(stages) > 2 or name not in STYLES:
            raise UserError(f"unsupported schedule {name}", "use scheduler.lr_decay_style=cosine")
        found["scheduler.lr_decay_style"] = STYLES[name]
        if name == "CosineAnnealingLR":
            found["optimizer.min_lr"] = last["kwargs"].get("eta_min", 0.0)
    return found


def model(value: Any) -> Settings:
    """The starting model; a reference to the run's own changes nothing."""
    return {} if "art:model" in str(value) else {"run.model": model_reference(value)}


def rows(key: str) -> Callable[[Any], Settings]:
    """A file of rows instead of a data artifact; a reference to the run's own changes nothing."""

    def say(value: Any) -> Settings:
        return {} if "art:data" in str(value) else {key: value, "run.data": None}

    return say


def clip(value: Any) -> Settings:
    """Gradient clipping; null, which turns it off, stays a NeMo-RL override."""
    return {"engine.overrides.policy.max_grad_norm": None} if value is None else {"optimizer.clip_grad": value}


COMMON: dict[str, Meaning] = {
    "defaults": lambda value: {},
    "run": NoEffect("--run and --batch choose the machines"),
    "run.data": "run.data",
    "run.env.container": "engine.container",
    "policy.model_name": model,
    "run.model": model,
    "policy.tokenizer.name": NoEffect("the tokenizer is the model's own"),
    "policy.train_micro_batch_size": "train.micro_batch_size",
    "policy.max_total_sequence_length": "engine.max_total_sequence_length",
    "policy.max_grad_norm": clip,
    "policy.optimizer.name": only("torch.optim.AdamW", remedy="the optimizer here is torch.optim.AdamW"),
    "policy.optimizer.kwargs.lr": "optimizer.lr",
    "policy.optimizer.kwargs.weight_decay": "optimizer.weight_decay",
    "policy.optimizer.kwargs.eps": "optimizer.adam_eps",
    "policy.optimizer.kwargs.betas": betas,
    "policy.scheduler": torch_schedule,
    **{f"policy.megatron_cfg.optimizer.{name}": f"optimizer.{name}"
       for name in ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")},
    **{f"policy.megatron_cfg.scheduler.{name}": f"scheduler.{name}" for name in ("lr_decay_style", "lr_warmup_iters")},
    "policy.megatron_cfg.scheduler.lr_decay_iters": NoEffect("the schedule has the length of train.train_iters"),
    "checkpointing.enabled": NoEffect("a run always keeps checkpoints"),
    "checkpointing.checkpoint_dir": "checkpoint.checkpoint_dir",
    "checkpointing.save_period": "checkpoint.save_interval",
    "checkpointing.keep_top_k": "checkpoint.most_recent_k",
    "checkpointing.load_path": "engine.load_path",
    "checkpointing.model_save_format": NoEffect("the result is always a whole Hugging Face folder"),
    "checkpointing.save_consolidated": NoEffect("the result is always a whole Hugging Face folder"),
    "logger.log_dir": "logger.log_dir",
    "logger.tensorboard_enabled": NoEffect("TensorBoard's files are always written"),
    "logger.wandb_enabled": lambda value: {} if value else {"logger.wandb_project": None},
    "logger.wandb.project": "logger.wandb_project",
    "logger.wandb.entity": "logger.wandb_entity",
    "logger.wandb.name": "logger.wandb_name",
    "logger.mlflow_enabled": lambda value: {} if value else {"logger.mlflow_tracking_uri": None},
    "logger.mlflow.tracking_uri": "logger.mlflow_tracking_uri",
    "logger.mlflow.experiment_name": "logger.mlflow_experiment",
    "logger.mlflow.run_name": NoEffect("MLflow's run has the name of ours"),
    "cluster.num_nodes": "engine.num_nodes",
    "cluster.gpus_per_node": "engine.gpus_per_node",
}  # fmt: skip
GRPO: dict[str, Meaning] = COMMON | {
    **{f"grpo.{name}": f"grpo.{name}" for name in (
        "num_prompts_per_step", "num_generations_per_prompt", "use_leave_one_out_baseline", "normalize_rewards",
        "overlong_filtering")},
    **{f"policy.generation.{name}": f"grpo.{name}" for name in ("max_new_tokens", "temperature", "top_p")},
    **{f"loss_fn.{name}": f"grpo.{name}" for name in (
        "reference_policy_kl_penalty", "ratio_clip_min", "ratio_clip_max", "truncated_importance_sampling_ratio")},
    "grpo.max_num_steps": "train.train_iters",
    "grpo.val_period": "train.eval_interval",
    "grpo.val_batch_size": NoEffect("validation sends train.eval_rows questions at once"),
    "grpo.max_val_samples": lambda value: {} if value is None else {"train.eval_rows": value},
    "grpo.seed": "run.seed",
    **{key: rows("engine.train_rows") for key in ("data.train_jsonl_fpath", "data.train.data_path")},
    **{key: rows("engine.valid_rows") for key in ("data.validation_jsonl_fpath", "data.validation.data_path")},
}  # fmt: skip
SFT: dict[str, Meaning] = COMMON | {
    "policy.train_global_batch_size": "train.global_batch_size",
    "sft.max_num_steps": "train.train_iters",
    "sft.val_period": "train.eval_interval",
    "sft.val_batches": NoEffect("train.eval_rows sets the size of validation"),
    "sft.val_global_batch_size": NoEffect("validation uses the training batch size"),
    "sft.val_micro_batch_size": NoEffect("validation uses the training batch size"),
    "sft.seed": "run.seed",
}


def grpo_file(content: Settings, name: str) -> Whole:
    """Base, data and environment of a GRPO recipe.

    With NeMo-Gym, the rows come from the artifact in `run.data`, if the file names one. Otherwise the recipe's
    environment reads its own data set, whose files stay NeMo-RL overrides.
    """
    version = version_of_file(content)
    found = _whole(content, name, "grpo", version)
    notes = [f"read as a file of NeMo-RL {version}; set engine.version for a different one"]
    above = dict.fromkeys(content.keys() & {"defaults"}, "engine.base")
    metric = found.pop(METRIC, None)
    if metric == NO_METRIC:
        found[METRIC] = METRIC_OF_GRPO
        above |= {"checkpointing.metric_name": METRIC} if has(content, "checkpointing.metric_name") else {}
        notes.append(f"checkpointing.metric_name {NO_METRIC}: NeMo-RL's GRPO calls it {METRIC_OF_GRPO}, which is used")
    gym = has(content, "env.nemo_gym") or bool(at(content, "env.should_use_nemo_gym"))
    found["engine.environment"] = "nemo_gym" if gym else "base"
    if gym:
        data = at(content, "run.data")
        own = {} if data is None else {"run.data": data, "engine.train_rows": None, "engine.valid_rows": None}
        return Whole(found | own, notes + _rare_checkpoints(found), taken=above)
    found["run.data"] = None  # the recipe names its own data
    files = {key: f"engine.overrides.{key}" for key in DATA_FILES if has(content, key)}
    found |= {ours: _absolute(at(content, key)) for key, ours in files.items()}
    return Whole(found, notes + _rare_checkpoints(found), taken=above | files)


def sft_file(content: Settings, name: str) -> Whole:
    """Base and data of a fine-tuning recipe."""
    above = dict.fromkeys(content.keys() & {"defaults"}, "engine.base")
    found = _whole(content, name, "sft", LATEST) | {"run.data": None}
    return Whole(found, _rare_checkpoints(found), taken=above)


def version_of_file(content: Settings) -> str:
    """The NeMo-RL version of a GRPO recipe, recognised by the keys of its row files."""
    kind = "flat" if any(has(content, key) for key in FLAT) else "nested"
    return next(version for version, one in VERSIONS.items() if one.data_keys == kind)


def _rare_checkpoints(found: Settings) -> list[str]:
    """A note for recipes whose only checkpoint is the one that NeMo-RL saves after the last step."""
    period, steps = found.get("checkpoint.save_interval"), found.get("train.train_iters")
    if not (isinstance(period, int) and isinstance(steps, int) and period > steps):
        return []
    remedy = f"set checkpoint.save_interval={max(1, steps // 5)} for more"
    return [f"a checkpoint every {period} steps in {steps}: only one is saved, at the end; {remedy}"]


def _absolute(value: Any) -> Any:
    """Absolute path of a user's file, because NeMo-RL runs in its checkout's folder."""
    return str(Path(value).absolute()) if isinstance(value, str) and Path(value).is_file() else value


def _whole(content: Settings, name: str, algorithm: str, version: str) -> Settings:
    """The config that a recipe builds on, with the recipe's defaults filled in from it.

    Raises:
        UserError: it builds on a file that is not in the table of NeMo-RL's configs.
    """
    bases = load_bases(version)
    own = content.get("defaults")
    wanted = PurePosixPath(str(own[0] if isinstance(own, list) else own or name)).name
    usual = "examples/configs/sft.yaml" if algorithm == "sft" else "examples/configs/grpo_math_1B.yaml"
    base = next((one for one in bases if PurePosixPath(one).name == wanted), None if own else usual)
    if base is None:
        raise UserError(f"defaults: {own}: not a known config of NeMo-RL", f"known: {', '.join(bases)}")
    merged = merge(bases[base].values, content)
    found = {"engine.base": base} | _decided(merged, GRPO if algorithm == "grpo" else SFT)
    if version != LATEST:
        found["engine.version"] = version
        if not has(content, "run.env.container"):  # keep an image that the file names
            found["engine.container"] = f"nvcr.io/nvidia/{VERSIONS[version].container}"
    return found | {METRIC: at(merged, "checkpointing.metric_name")} if algorithm == "grpo" else found


def _decided(merged: Settings, keys: Mapping[str, Meaning]) -> Settings:
    """Our settings for a recipe merged with its base; with two backends, the optimizer of the one that trains."""
    tree = OmegaConf.create(merged)
    megatron = bool(at(merged, "policy.megatron_cfg.enabled"))
    idle = ("policy.optimizer.", "policy.scheduler") if megatron else ("policy.megatron_cfg.",)
    found: Settings = {}
    for key, meaning in keys.items():
        if not has(merged, key) or key.startswith(("run.data", "data.", "defaults", *idle)):
            continue
        try:
            with computing_with(RESOLVERS), bounded():
                value = plain(OmegaConf.select(tree, key))
        except OmegaConfBaseException:  # refers to something that only NeMo-RL resolves at its start
            continue
        if isinstance(meaning, str):
            found[meaning] = value
        elif not isinstance(meaning, NoEffect | Refused):
            found |= meaning(value)
    if at(merged, "logger.wandb_enabled") is False:
        found["logger.wandb_project"] = None
    if at(merged, "logger.mlflow_enabled") is False:
        found["logger.mlflow_tracking_uri"] = None
    return found


def reinforces(known: Any) -> bool:
    """Whether one of our configs has the section for GRPO's keys."""
    return any(key.startswith("grpo.") for key in known)


def fine_tunes(content: Settings) -> bool:
    """Whether a recipe is for fine-tuning, by its section or its base."""
    return "sft" in content or "sft" in str(content.get("defaults"))


NEMO_RL_GRPO = Dialect(
    library="NeMo-RL",
    engine="nemo_rl",
    is_its=lambda content: "policy" in content and not fine_tunes(content),
    keys=GRPO,
    sections=BASE_SECTIONS | {"grpo"},
    resolvers=RESOLVERS,
    whole=grpo_file,
    fits=reinforces,
)
NEMO_RL_SFT = Dialect(
    library="NeMo-RL",
    engine="nemo_rl",
    is_its=lambda content: "policy" in content and fine_tunes(content),
    keys=SFT,
    sections=BASE_SECTIONS | {"sft"},
    resolvers=RESOLVERS,
    whole=sft_file,
    fits=lambda known: not reinforces(known),
)
