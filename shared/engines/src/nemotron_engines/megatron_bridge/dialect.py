"""Translate Megatron-Bridge's own keys, as NVIDIA's recipes write them, to ours."""

from typing import Any

from nemotron_engines.overrides import at
from nemotron_shared.config.translation import Dialect, Meaning, NoEffect, Refused, Settings, Whole, model_reference
from nemotron_shared.system.errors import UserError

RECIPES = "megatron.bridge.recipes."
EARLIER = "_finetune_config"
"""A recipe of older versions, with adapters unless `peft` is null, corresponds to two current ones."""
PACKED = NoEffect("the packed rows of run.data set the length")
PROFILE = NoEffect("--run and --batch choose the machines")
LAYOUT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
)  # fmt: skip


def recipe(value: Any) -> Settings:
    """The recipe's function, in a module of Bridge."""
    return {"engine.recipe": str(value).removeprefix(RECIPES)}


def peft(value: Any) -> Settings:
    """The name of a scheme, or none."""
    return {"engine.peft.scheme": value}


def adapter(value: Any) -> Settings:
    """The class of adapters.

    Raises:
        UserError: an unsupported class.
    """
    scheme = str(value).rpartition(".")[2].lower()
    if scheme not in ("lora", "dora"):
        raise UserError(f"unsupported adapters {value!r}", "choose lora or dora")
    return {"engine.peft.scheme": scheme}


def precision(value: Any) -> Settings:
    """The name of one of Bridge's precisions."""
    return {"engine.mixed_precision": value}


def recipe_of(content: Settings) -> str:
    """The recipe that provides a file's default layout and optimizer.

    Raises:
        UserError: the file names no recipe, so its defaults are unknown.
    """
    section = content.get("recipe")
    target = section.get("_target_") if isinstance(section, dict) else None
    if target is None:
        raise UserError("recipe._target_ is not set, so the file's defaults are unknown", "add it to the file")
    named = recipe(target)["engine.recipe"]
    if named.endswith(EARLIER) and isinstance(section, dict):
        kind = "sft" if section.get("peft", "lora") is None else "peft"
        return f"{named.removesuffix(EARLIER)}_{kind}_config"
    return named


def whole(content: Settings, name: str) -> Whole:
    """Resolve the row length, for pretraining only (fine-tuning has packed rows), and the rows of a validation, which
    Bridge counts in batches. Loading from the save folder means resuming the run's own checkpoints.

    Raises:
        UserError: two lengths.
    """
    places = ("recipe.seq_length", "dataset.sequence_length", "dataset.seq_length", "model.seq_length")
    lengths = {key: value for key in places if isinstance(value := at(content, key), int)}
    recipe = recipe_of(content)
    found: Settings = {"engine.recipe": recipe}
    if recipe.endswith("_peft_config"):
        found["engine.peft.scheme"] = at(content, "recipe.peft") or "lora"
    taken: dict[str, str | None] = {}
    notes = []
    if at(content, "checkpoint.load") == at(content, "checkpoint.save") is not None:
        taken["checkpoint.load"] = None
        notes.append("checkpoint.load is checkpoint.save: the same command continues an unfinished run")
    if lengths and "pretrain" in recipe:
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{key} is {value}" for key, value in lengths.items())
            raise UserError(f"conflicting row lengths: {said}", "keep only one of them")
        found["train.seq_length"] = next(iter(lengths.values()))
        taken |= dict.fromkeys(lengths, "train.seq_length")
    batch = at(content, "train.global_batch_size") or at(content, "recipe.global_batch_size")
    for key in ("train.eval_iters", "validation.eval_iters"):
        if batch and (batches := at(content, key)):
            found["train.eval_rows"] = batches * batch
            taken[key] = "train.eval_rows"
    return Whole(found, notes, taken)


def start(value: Any) -> Settings:
    """A checkpoint to continue from, with its optimizer and step."""
    return {} if value is None else {"run.model": str(value), "engine.start_from": "state"}


def pretrained(value: Any) -> Settings:
    """A checkpoint that provides only weights; a reference to the run's own model changes nothing."""
    return {} if value is None or "art:model" in str(value) else {"run.model": model_reference(value)}


def project(name: str) -> Any:
    """W&B's project or entity; a reference to a profile's section is left to the profile."""
    return lambda value: {} if value is None or "run.wandb" in str(value) else {f"logger.{name}": value}


SAME = (
    "train.train_iters", "train.global_batch_size", "train.micro_batch_size", "train.eval_interval",
    "checkpoint.save_interval", "checkpoint.most_recent_k", "logger.log_interval", "optimizer.clip_grad",
    *(f"optimizer.{name}" for name in ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")),
    *(f"scheduler.{name}" for name in ("lr_decay_style", "lr_warmup_iters", "lr_wsd_decay_iters")),
)  # fmt: skip
# Recipe arguments in NVIDIA's YAML, and our keys for them.
ARGUMENTS = {
    "global_batch_size": "train.global_batch_size", "micro_batch_size": "train.micro_batch_size",
    "train_iters": "train.train_iters", "lr": "optimizer.lr", "min_lr": "optimizer.min_lr",
    "lr_warmup_iters": "scheduler.lr_warmup_iters",
    **{name: f"engine.{name}" for name in LAYOUT},
    **{f"{name}_parallelism": f"engine.{name}_model_parallel_size" for name in ("tensor", "pipeline")},
    **{f"{name}_model_parallelism": f"engine.{name}_model_parallel_size" for name in ("tensor", "pipeline", "expert")},
    "context_parallelism": "engine.context_parallel_size", "expert_parallelism": "engine.expert_model_parallel_size",
    "expert_tensor_parallelism": "engine.expert_tensor_parallel_size",
    "sequence_parallelism": "engine.sequence_parallel",
    "context_parallel_size": "engine.context_parallel_size",
}  # fmt: skip
LENGTH = NoEffect("train.seq_length, or the packed rows, set the row length")
KEYS: dict[str, Meaning] = {
    "defaults": Refused("copy the contents of those files into this one"),
    "run": NoEffect("run.data and run.model name the artifacts; options of the command set the rest"),
    "recipe": Refused("set the value in its section of Bridge's config"),
    **{f"recipe.{name}": key for name, key in ARGUMENTS.items()},
    "recipe.seq_length": LENGTH,
    "recipe.hf_path": NoEffect("run.model names the model"),
    "recipe.precision_config": precision,
    "mixed_precision": precision,
    "peft": peft,
    "peft._target_": adapter,
    **{f"peft.{name}": f"engine.peft.{name}" for name in ("dim", "alpha", "dropout", "target_modules")},
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
    **{f"dataset.{family}_packed_sft_dir": PACKED for family in ("nano3", "super3", "ultra3", "lightning35")},
    "dataset.seq_length": LENGTH,
    "dataset.packed_sequence_specs": PACKED,
    "dataset.blend_per_split": Refused("set run.data"),
    "train.eval_iters": Refused("set train.eval_rows, the rows of a validation"),
    "validation.eval_iters": Refused("set train.eval_rows, the rows of a validation"),
    "model.seq_length": LENGTH,
    "dataset.sequence_length": LENGTH,
    "validation.eval_interval": "train.eval_interval",
    "rng.seed": "run.seed",
    "scheduler.lr_wsd_decay_style": NoEffect("the WSD decay always follows the square root"),
    "checkpoint.save": NoEffect("checkpoints are in the run folder; checkpoint.checkpoint_dir makes a link to them"),
    "checkpoint.load": start,
    "checkpoint.pretrained_checkpoint": pretrained,
    "checkpoint.finetune": NoEffect("engine.start_from decides whether to load only weights"),
    "convert_to_hf": NoEffect("the result is always a whole Hugging Face folder"),
    "logger.wandb_project": project("wandb_project"),
    "logger.wandb_entity": project("wandb_entity"),
    "logger.tensorboard_dir": NoEffect("TensorBoard's files are in the run folder"),
    "logger.wandb_save_dir": NoEffect("W&B's files are in the run folder"),
    "logger.wandb_exp_name": "logger.wandb_name",
}
SECTIONS = frozenset(
    {"train", "validation", "model", "optimizer", "scheduler", "ddp", "checkpoint", "logger", "dataset", "rng", "dist",
     "mixed_precision", "peft", "comm_overlap", "profiling", "tokenizer", "ft", "straggler", "rerun_state_machine",
     "tensor_inspect"}
)  # fmt: skip

MEGATRON_BRIDGE = Dialect(
    library="Megatron-Bridge",
    engine="megatron_bridge",
    is_its=lambda content: isinstance(content.get("recipe"), dict) or "convert_to_hf" in content,
    keys=KEYS,
    sections=SECTIONS,
    whole=whole,
    recipe=recipe_of,
)
