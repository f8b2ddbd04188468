"""NeMo Automodel's own keys, and what they are here: files of its recipes can be given to `-c` as they are."""

from collections.abc import Callable
from typing import Any

from nemotron_engines.automodel.silent import as_list, weights, whole
from nemotron_shared.config.translation import Dialect, Meaning, NoEffect, Settings, model_reference, only
from nemotron_shared.errors import UserError

RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction",)
STRATEGIES = {"FSDP2Manager": "fsdp2", "FSDP2Config": "fsdp2", "DDPManager": "ddp", "DDPConfig": "ddp"}
CHATS = "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset"
LOADER = "torchdata.stateful_dataloader.StatefulDataLoader"
COLLATE = "nemo_automodel.components.datasets.utils.default_collater"
HUGGING_FACE = NoEffect("the result is always a whole Hugging Face folder")


def recipe(value: Any) -> Settings:
    """The loop that the stage is for, in the short form or as a class's whole name."""
    if str(value.get("_target_") if isinstance(value, dict) else value).rpartition(".")[2] not in RECIPES:
        raise UserError(f"the recipe {value!r} is not one of ours", f"this engine runs {RECIPES[0]}")
    return {}


def strategy(value: Any) -> Settings:
    """`distributed.strategy`, and the class that older versions name instead."""
    name = str(value).rpartition(".")[2]
    return {"engine.strategy": STRATEGIES.get(name, name)}


def chat_data(value: Any) -> Settings:
    """Chats as they are; other data sets of Automodel's are not for this stage."""
    if value != CHATS:
        raise UserError(f"the data set {value!r} is not for this stage", f"name a JSONL file of chats with {CHATS}")
    return {"engine.data": "chat"}


def packing(value: Any) -> Settings:
    """0 switches packing off."""
    return {"engine.chats.pack": True, "engine.chats.seq_length": value} if value else {"engine.chats.pack": False}


def betas(value: Any) -> Settings:
    """Both of Adam's."""
    return dict(zip(("optimizer.adam_beta1", "optimizer.adam_beta2"), value, strict=True))


def targets(value: Any) -> Settings:
    """Layers by name, which is instead of all of them."""
    names = as_list(value)
    found: Settings = {"engine.peft.target_modules": names, "engine.peft.match_all_linear": not names}
    return found | ({"engine.peft.exclude_modules": []} if names else {})


def everywhere(value: Any) -> Settings:
    """All linear layers, which is instead of those with a name."""
    return {"engine.peft.match_all_linear": value} | ({"engine.peft.target_modules": []} if value else {})


def absent(name: str, **settings: Any) -> Callable[[Any], Settings]:
    """A section as a whole, which can only be taken away; `settings` say what that is, with `__` for a dot."""

    def check(value: Any) -> Settings:
        if value:
            raise UserError(f"{name} is a section, not {value!r}", f"set its keys one by one, or {name}=null")
        return {key.replace("__", "."): ours for key, ours in settings.items()}

    return check


KEYS: dict[str, Meaning] = {
    "recipe": recipe,
    "recipe._target_": recipe,
    "seed": "run.seed",
    "rng.seed": "run.seed",
    "rng": NoEffect("run.seed seeds everything"),
    "step_scheduler": absent("step_scheduler"),
    "step_scheduler.max_steps": "train.train_iters",
    "step_scheduler.num_epochs": NoEffect("train.train_iters says when training ends, though epochs be fewer or more"),
    "step_scheduler.global_batch_size": "train.global_batch_size",
    "step_scheduler.local_batch_size": "train.micro_batch_size",
    "step_scheduler.val_every_steps": "train.eval_interval",
    "step_scheduler.ckpt_every_steps": "checkpoint.save_interval",
    "step_scheduler.preemption_signal": NoEffect("SIGTERM and Ctrl-C always save"),
    "checkpoint": absent("checkpoint"),
    "checkpoint.checkpoint_dir": "checkpoint.checkpoint_dir",
    "checkpoint.enabled": NoEffect("a run always keeps checkpoints"),
    "checkpoint.restore_from": NoEffect("the same command continues an unfinished run"),
    "checkpoint.max_recent_checkpoints": "checkpoint.most_recent_k",
    "checkpoint.model_save_format": HUGGING_FACE,
    "checkpoint.save_consolidated": HUGGING_FACE,
    "model._target_": only(
        "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        remedy="the model's class is Automodel's own: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
    ),
    "model.pretrained_model_name_or_path": lambda value: {"run.model": model_reference(value)},
    "model.trust_remote_code": NoEffect("Automodel has a class of its own for this model, so no foreign code runs"),
    "model.force_hf": only(False, remedy="for the class of transformers choose engine=transformers"),
    "model.torch_dtype": weights,
    "model.backend._target_": NoEffect("the backend's class is fixed"),
    **{f"model.backend.{name}": f"engine.backend.{name}"
       for name in ("attn", "linear", "rms_norm", "experts", "dispatcher", "rope_fusion")},
    "optimizer": absent("optimizer"),
    "optimizer.lr": "optimizer.lr",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.eps": "optimizer.adam_eps",
    "optimizer.betas": betas,
    "lr_scheduler": absent(
        "lr_scheduler", scheduler__lr_decay_style="constant", scheduler__lr_warmup_iters=0
    ),
    "lr_scheduler.wsd_decay_steps": "scheduler.lr_wsd_decay_iters",
    "lr_scheduler.max_lr": "optimizer.lr",
    "lr_scheduler.min_lr": "optimizer.min_lr",
    "lr_scheduler.lr_decay_style": "scheduler.lr_decay_style",
    "lr_scheduler.lr_warmup_steps": "scheduler.lr_warmup_iters",
    "clip_grad_norm": absent("clip_grad_norm", optimizer__clip_grad=1.0),
    "clip_grad_norm.max_norm": "optimizer.clip_grad",
    "max_grad_norm": "optimizer.clip_grad",
    "distributed.strategy": strategy,
    "distributed._target_": strategy,
    "distributed.dp_size": NoEffect("all processes that share nothing else are data-parallel"),
    **{f"distributed.{name}": f"engine.{name}" for name in ("tp_size", "cp_size", "ep_size")},
    "distributed.activation_checkpointing": "engine.activation_checkpointing",
    "peft": absent("peft", engine__peft=None),
    "peft.target_modules": targets,
    "peft.match_all_linear": everywhere,
    "peft._target_": NoEffect("adapters are Automodel's PeftConfig"),
    "peft.use_dora": only(False, remedy="leave it out: such adapters cannot be merged here"),
    **{f"peft.{name}": f"engine.peft.{name}"
       for name in ("dim", "alpha", "dropout", "exclude_modules", "use_triton")},
    "dataset._target_": chat_data,
    "dataset.path_or_dataset_id": "engine.chats.train",
    "dataset.seq_length": "engine.chats.seq_length",
    "dataset.tokenizer": NoEffect("the tokenizer is the model's own"),
    "validation_dataset": absent("validation_dataset", engine__chats__valid=None),
    "validation_dataset._target_": chat_data,
    "validation_dataset.path_or_dataset_id": "engine.chats.valid",
    "validation_dataset.seq_length": NoEffect("validation has the length of training, engine.chats.seq_length"),
    "validation_dataset.tokenizer": NoEffect("the tokenizer is the model's own"),
    "packed_sequence": absent("packed_sequence", engine__chats__pack=False),
    "packed_sequence.packed_sequence_size": packing,
    **{f"{section}.{name}": only(value, remedy=f"leave it out, it is {value} here")
       for section in ("dataloader", "validation_dataloader")
       for name, value in (("_target_", LOADER), ("collate_fn", COLLATE))},
    "wandb": absent("wandb", logger__wandb_project=None),
    "wandb.project": "logger.wandb_project",
    "wandb.entity": "logger.wandb_entity",
    "wandb.name": "logger.wandb_name",
    "ci": NoEffect("it is for the tests of Automodel's own examples"),
    "wandb.dir": NoEffect("W&B's files lie in the run's folder"),
}  # fmt: skip


SECTIONS = frozenset(key.partition(".")[0] for key in KEYS) | {
    "dist_env",
    "loss_fn",
    "compile",
    "fp8",
    "mlflow",
    "comet",
}

AUTOMODEL = Dialect(
    library="NeMo Automodel",
    engine="automodel",
    is_its=lambda content: bool({"step_scheduler", "dist_env", "validation_dataset"} & content.keys()),
    keys=KEYS,
    sections=SECTIONS,
    whole=whole,
)
