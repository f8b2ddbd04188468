"""What Automodel takes where a file of its own is silent; no training value of our local config stands in for it.

The values are those of its config classes (`StepSchedulerConfig`, `LRSchedulerConfig`, `PeftConfig`, ...), from 0.3 to
0.7, and of torch's optimizers.
"""

from collections.abc import Mapping
from typing import Any

from nemotron_shared.config.translation import Settings, Whole
from nemotron_shared.errors import UserError

STEPS = {
    "global_batch_size": ("train.global_batch_size", 32),
    "local_batch_size": ("train.micro_batch_size", 1),
    "ckpt_every_steps": ("checkpoint.save_interval", 100),
}
PEFT: dict[str, Any] = {"dim": 8, "alpha": 32, "dropout": 0.0, "use_triton": False}
CHOICES = ("match_all_linear", "target_modules", "exclude_modules")
TARGETS = ["*_proj"]
"""What it adapts where no layers are named."""
ADAM: dict[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}
WEIGHT_DECAY = {"torch.optim.AdamW": 0.01, "torch.optim.Adam": 0.0}
DEFAULT_OPTIMIZER = "torch.optim.AdamW"
CLIP = 1.0
SEED = 42
WANDB = "automodel"


def whole(content: Settings, name: str) -> Whole:
    """The whole file, silent parts included.

    Raises:
        UserError: the file counts epochs only, or leaves values to an optimizer that is not known here.
    """
    steps = section(content, "step_scheduler")
    if steps.get("max_steps") is None:
        raise UserError("step_scheduler.max_steps is not set, and epochs are not counted here", "add it to the file")
    found: Settings = {"run.data": None}
    found |= {ours: default for key, (ours, default) in STEPS.items() if steps.get(key) is None}
    if steps.get("val_every_steps") is None:  # it validates where it saves
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


def section(content: Settings, name: str) -> Mapping[str, Any]:
    """A section; one that is null is as good as none."""
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def optimizer(theirs: Mapping[str, Any], scheduler: Mapping[str, Any]) -> Settings:
    """What its class takes by itself.

    Raises:
        UserError: the class is not known, and the file is silent on one of its values.
    """
    target = str(theirs.get("_target_", DEFAULT_OPTIMIZER))
    silent = [key for key in (*ADAM, "weight_decay") if theirs.get(key) is None]
    if scheduler.get("max_lr") is not None and "lr" in silent:
        silent.remove("lr")
    if silent and target not in WEIGHT_DECAY:
        missing = ", ".join(f"optimizer.{key}" for key in silent)
        raise UserError(f"what {target} takes for {missing} is not known here", "write these into the file")
    found: Settings = {f"optimizer.{key}": ADAM[key] for key in ("lr",) if key in silent}
    if "betas" in silent:
        found |= dict(zip(("optimizer.adam_beta1", "optimizer.adam_beta2"), ADAM["betas"], strict=True))
    if "eps" in silent:
        found["optimizer.adam_eps"] = ADAM["eps"]
    if "weight_decay" in silent:
        found["optimizer.weight_decay"] = WEIGHT_DECAY[target]
    return found


def schedule(content: Settings, steps: int, found: Settings) -> Settings:
    """Constant without the section; with it a cosine from a tenth of the rate to a hundredth, and its own warm-up."""
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
    """Weights as they are stored; FSDP2 computes in bfloat16 unless its `mp_policy` says otherwise."""
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
        what = "peft: only one of match_all_linear, target_modules and exclude_modules can choose the layers"
        raise UserError(what, "leave the others out")
    if not every and not any(chosen.values()):
        chosen["target_modules"] = TARGETS
    found = {f"engine.peft.{key}": default for key, default in PEFT.items() if theirs.get(key) is None}
    found |= {f"engine.peft.{key}": names for key, names in chosen.items()}
    return found | {"engine.peft.match_all_linear": not chosen["target_modules"]}


def as_list(value: Any) -> list[str]:
    """Names, one of which may stand alone."""
    return [value] if isinstance(value, str) else list(value or [])


def chats(content: Settings) -> Settings:
    """Chats without a preparation: whole, unpacked, and the whole of the validation set."""
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
        found["engine.overrides.validation_dataset.split"] = "train"  # all of a file; ours would be train.eval_rows
    return found


def notes(content: Settings) -> list[str]:
    """What stays ours."""
    found = []
    if "backend" not in section(content, "model"):
        found.append("without model.backend torch's own kernels compute here, see engine.backend")
    if section(content, "validation_dataset"):
        found.append("the whole split of validation_dataset is validated, whatever train.eval_rows says")
    if "num_epochs" not in section(content, "step_scheduler"):
        found.append("train.train_iters alone ends the training; Automodel would also end it after 10 epochs")
    return found
