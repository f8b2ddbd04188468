"""NeMo Automodel's own words: the keys of its recipes, which `-c` accepts as they are, and the lines of its logs.

Where such a recipe is silent, Automodel's own defaults apply instead of our local config's: those of its config
classes (`StepSchedulerConfig`, `LRSchedulerConfig`, `PeftConfig`, ...), versions 0.3 to 0.7, and of torch's optimizers.

A line of its log, for `nemotron check`:

2026-08-10 15:48:59 | INFO | root | step 13 | epoch 0 | loss 0.6407 | grad_norm 1.1754 | lr 1.00e-05 | mem 31.55 GiB |
tps 6574.51(821.81/gpu) | num_label_tokens 26779                                                       (one line)
"""

from collections.abc import Callable, Mapping
from typing import Any

from nemotron_engines.overrides import betas, section
from nemotron_shared.config.translation import Dialect, Meaning, NoEffect, Settings, Whole, model_reference, only
from nemotron_shared.machine.library_output import LibraryLog
from nemotron_shared.system.errors import UserError

RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction",)
STRATEGIES = {"FSDP2Manager": "fsdp2", "FSDP2Config": "fsdp2", "DDPManager": "ddp", "DDPConfig": "ddp"}
CHATS = "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset"
LOADER = "torchdata.stateful_dataloader.StatefulDataLoader"
COLLATE = "nemo_automodel.components.datasets.utils.default_collater"
HUGGING_FACE = NoEffect("the result is always a whole Hugging Face folder")


def recipe(value: Any) -> Settings:
    """Accept only the training loop of this stage, by short name or full class path."""
    if str(value.get("_target_") if isinstance(value, dict) else value).rpartition(".")[2] not in RECIPES:
        raise UserError(f"unsupported recipe {value!r}", f"use {RECIPES[0]}")
    return {}


def strategy(value: Any) -> Settings:
    """`distributed.strategy`, or the class that older versions have in its place."""
    name = str(value).rpartition(".")[2]
    return {"engine.strategy": STRATEGIES.get(name, name)}


def chat_data(value: Any) -> Settings:
    """Accept chat data; this stage supports no other Automodel data sets."""
    if value != CHATS:
        raise UserError(f"unsupported data set {value!r}", f"name a JSONL file of chats with {CHATS}")
    return {"engine.data": "chat"}


def packing(value: Any) -> Settings:
    """0 switches packing off."""
    return {"engine.chats.pack": True, "engine.chats.seq_length": value} if value else {"engine.chats.pack": False}


def targets(value: Any) -> Settings:
    """Choose layers by name instead of all of them."""
    names = as_list(value)
    found: Settings = {"engine.peft.target_modules": names, "engine.peft.match_all_linear": not names}
    return found | ({"engine.peft.exclude_modules": []} if names else {})


def everywhere(value: Any) -> Settings:
    """Choose all linear layers instead of named ones."""
    return {"engine.peft.match_all_linear": value} | ({"engine.peft.target_modules": []} if value else {})


def absent(name: str, **settings: Any) -> Callable[[Any], Settings]:
    """A section that can only be removed as a whole; `settings` are its effect, with `__` for a dot."""

    def check(value: Any) -> Settings:
        if value:
            raise UserError(f"{name} is a section, not {value!r}", f"set its keys one by one, or {name}=null")
        return {key.replace("__", "."): ours for key, ours in settings.items()}

    return check


STEPS = {
    "global_batch_size": ("train.global_batch_size", 32),
    "local_batch_size": ("train.micro_batch_size", 1),
    "ckpt_every_steps": ("checkpoint.save_interval", 100),
}
PEFT: dict[str, Any] = {"dim": 8, "alpha": 32, "dropout": 0.0, "use_triton": False}
CHOICES = ("match_all_linear", "target_modules", "exclude_modules")
TARGETS = ["*_proj"]
"""Layers that Automodel adapts if none are named."""
ADAM: dict[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}
WEIGHT_DECAY = {"torch.optim.AdamW": 0.01, "torch.optim.Adam": 0.0}
DEFAULT_OPTIMIZER = "torch.optim.AdamW"
CLIP = 1.0
SEED = 42
WANDB = "automodel"


def whole(content: Settings, name: str) -> Whole:
    """The whole file, with defaults filled in.

    Raises:
        UserError: the file counts epochs only, or relies on defaults of an unknown optimizer.
    """
    steps = section(content, "step_scheduler")
    if steps.get("max_steps") is None:
        raise UserError("step_scheduler.max_steps is not set (this engine does not count epochs)", "add it to the file")
    found: Settings = {"run.data": None}
    found |= {ours: default for key, (ours, default) in STEPS.items() if steps.get(key) is None}
    if steps.get("val_every_steps") is None:  # it validates whenever it saves
        found["train.eval_interval"] = steps.get("ckpt_every_steps") or found["checkpoint.save_interval"]
    if content.get("seed") is None and section(content, "rng").get("seed") is None:
        found["run.seed"] = SEED
    found |= optimizer(section(content, "optimizer"), section(content, "lr_scheduler"))
    found |= schedule(content, steps["max_steps"], found)
    if section(content, "clip_grad_norm").get("max_norm") is None and content.get("max_grad_norm") is None:
        found["optimizer.clip_grad"] = CLIP
    found |= types(content) | adapters(content.get("peft")) | chats(content)
    if section(content, "wandb").get("project") is None:
        found["logger.wandb_project"] = WANDB if content.get("wandb") else None
    chosen = [f"peft.{key}" for key in CHOICES if isinstance(content.get("peft"), dict) and key in content["peft"]]
    taken = {key: f"engine.{key}" for key in chosen}
    return Whole(found, notes(content), taken)


def optimizer(theirs: Mapping[str, Any], scheduler: Mapping[str, Any]) -> Settings:
    """Fill in the defaults of the optimizer's class.

    Raises:
        UserError: the class is unknown, and the file leaves out one of its values.
    """
    target = str(theirs.get("_target_", DEFAULT_OPTIMIZER))
    silent = [key for key in (*ADAM, "weight_decay") if theirs.get(key) is None]
    if scheduler.get("max_lr") is not None and "lr" in silent:
        silent.remove("lr")
    if silent and target not in WEIGHT_DECAY:
        missing = ", ".join(f"optimizer.{key}" for key in silent)
        raise UserError(f"the defaults of {target} for {missing} are unknown", "add these values to the file")
    found: Settings = {f"optimizer.{key}": ADAM[key] for key in ("lr",) if key in silent}
    if "betas" in silent:
        found |= betas(ADAM["betas"])
    if "eps" in silent:
        found["optimizer.adam_eps"] = ADAM["eps"]
    if "weight_decay" in silent:
        found["optimizer.weight_decay"] = WEIGHT_DECAY[target]
    return found


def schedule(content: Settings, steps: int, found: Settings) -> Settings:
    """Constant without the section; with it, a cosine from a tenth of the rate to a hundredth, with its own warm-up."""
    theirs = section(content, "lr_scheduler")
    rate = float(theirs.get("max_lr") or section(content, "optimizer").get("lr") or found.get("optimizer.lr", 0.0))
    if not theirs and content.get("lr_scheduler") is None:
        constant: Settings = {"scheduler.lr_decay_style": "constant", "scheduler.lr_warmup_iters": 0}
        return constant | {"optimizer.min_lr": rate, "scheduler.lr_wsd_decay_iters": 0}
    silent: Settings = {
        "lr_decay_style": ("scheduler.lr_decay_style", "cosine"),
        "lr_warmup_steps": ("scheduler.lr_warmup_iters", min(1000, steps // 10)),
        "min_lr": ("optimizer.min_lr", rate * 0.01),
        "init_lr": ("engine.overrides.lr_scheduler.init_lr", rate * 0.1),
        "wsd_decay_steps": ("scheduler.lr_wsd_decay_iters", 0),
    }
    return {ours: default for key, (ours, default) in silent.items() if theirs.get(key) is None}


def weights(value: Any) -> Settings:
    """Type of the weights."""
    name = str(value).removeprefix("torch.")
    name = {"bf16": "bfloat16", "auto": "bfloat16", "fp32": "float32"}.get(name, name)
    return {"engine.weights_dtype": name, "engine.dtype": name}


def types(content: Settings) -> Settings:
    """Dtype of the weights as stored; FSDP2 computes in bfloat16 unless its `mp_policy` says otherwise."""
    spread = section(content, "distributed")
    given = section(content, "model").get("torch_dtype")
    found = weights(given or "auto")
    if "ddp" not in f"{spread.get('strategy')}{spread.get('_target_')}".lower():
        policy = spread.get("mp_policy") or {}
        found["engine.dtype"] = weights(policy.get("param_dtype", "bfloat16"))["engine.dtype"]
    return found


def adapters(theirs: Any) -> Settings:
    """All of `engine.peft`, or none of it.

    Raises:
        UserError: layers are chosen in two ways.
    """
    if theirs is None:
        return {"engine.peft": None}
    chosen = {key: as_list(theirs.get(key)) for key in ("target_modules", "exclude_modules")}
    every = bool(theirs.get("match_all_linear"))
    if sum([every, *(bool(names) for names in chosen.values())]) > 1:
        what = "peft: only one of match_all_linear, target_modules and exclude_modules may choose the layers"
        raise UserError(what, "remove the others")
    if not every and not any(chosen.values()):
        chosen["target_modules"] = TARGETS
    found = {f"engine.peft.{key}": default for key, default in PEFT.items() if theirs.get(key) is None}
    found |= {f"engine.peft.{key}": names for key, names in chosen.items()}
    return found | {"engine.peft.match_all_linear": not chosen["target_modules"]}


def as_list(value: Any) -> list[str]:
    """A list of names; a single name becomes a list."""
    return [value] if isinstance(value, str) else list(value or [])


def chats(content: Settings) -> Settings:
    """Raw chats: unpacked, with the whole validation set."""
    found: Settings = {"engine.data": "chat"}
    if not section(content, "packed_sequence").get("packed_sequence_size"):
        found["engine.chats.pack"] = False
    for name in ("dataset", "validation_dataset"):
        theirs = section(content, name)
        if theirs and "truncation" not in theirs:
            found[f"engine.overrides.{name}.truncation"] = "do_not_truncate"
    if not section(content, "validation_dataset"):
        found["engine.chats.valid"] = None
    elif "split" not in section(content, "validation_dataset"):
        found["engine.overrides.validation_dataset.split"] = "train"  # all of the file; our default is train.eval_rows
    return found


def notes(content: Settings) -> list[str]:
    """Notes on settings that stay ours."""
    found = []
    if "backend" not in section(content, "model"):
        found.append("without model.backend, torch's own kernels are used; see engine.backend")
    if section(content, "validation_dataset"):
        found.append("validation uses the whole split of validation_dataset, not train.eval_rows")
    if "num_epochs" not in section(content, "step_scheduler"):
        found.append("only train.train_iters ends the training; Automodel would also stop after 10 epochs")
    return found


KEYS: dict[str, Meaning] = {
    "recipe": recipe,
    "recipe._target_": recipe,
    "seed": "run.seed",
    "rng.seed": "run.seed",
    "rng": NoEffect("run.seed seeds everything"),
    "step_scheduler": absent("step_scheduler"),
    "step_scheduler.max_steps": "train.train_iters",
    "step_scheduler.num_epochs": NoEffect("train.train_iters ends the training, not a number of epochs"),
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
    "model.trust_remote_code": NoEffect("Automodel has its own class for this model, so no foreign code runs"),
    "model.force_hf": only(False, remedy="to use transformers' class, set engine=transformers"),
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
    "distributed.dp_size": NoEffect("all processes not used by another dimension are data-parallel"),
    **{f"distributed.{name}": f"engine.{name}" for name in ("tp_size", "cp_size", "ep_size")},
    "distributed.activation_checkpointing": "engine.activation_checkpointing",
    "peft": absent("peft", engine__peft=None),
    "peft.target_modules": targets,
    "peft.match_all_linear": everywhere,
    "peft._target_": NoEffect("adapters are Automodel's PeftConfig"),
    "peft.use_dora": only(False, remedy="leave it out: this engine cannot merge such adapters"),
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
    "ci": NoEffect("it only serves Automodel's own example tests"),
    "wandb.dir": NoEffect("W&B's files are in the run folder"),
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


# What Automodel prints and writes next to its checkpoints.


LOG = LibraryLog(
    title="Automodel",
    lines={
        "| grad_norm ": (
            r"^(?:(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \|.*)?"
            r"\bstep (?P<step>\d+) \| epoch \d+ \| loss (?P<loss>\S+) \| grad_norm (?P<grad_norm>\S+)"
            r" \| lr (?P<lr>\S+)(?: \|.*?\| tps (?P<tokens_per_second>[\d.]+))?"
        ),
        "[val] name": r'\[val\] name "[^"]*" \| step (?P<step>\d+) \| epoch \d+ \| loss (?P<valid_loss>\S+)',
        "parameters percentage": r"Trainable parameters percentage: (?P<trained_percent>[\d.]+)%",
    },
    records=("training.jsonl", "validation.jsonl"),
    keys={"tps": "tokens_per_second", "val_loss": "valid_loss", "timestamp": "time"},
    first_step=0,
)
