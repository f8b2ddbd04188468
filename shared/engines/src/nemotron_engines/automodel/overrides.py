"""`engine.overrides`: any value of Automodel's recipe, checked against the classes that will take it.

error: nano3.yaml:31: engine.overrides.step_scheduler.gc_every_step: Automodel's StepSchedulerConfig has no such field
  did you mean 'gc_every_steps'?
"""

import importlib
import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any, Literal

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_shared.config.typed_values import has_type, refusal
from nemotron_shared.errors import did_you_mean

COMPONENTS = "nemo_automodel.components"
# Section of the recipe -> what takes its values: a dataclass or a function of Automodel or torch.
TAKERS = {
    "step_scheduler": f"{COMPONENTS}.training.step_scheduler:StepSchedulerConfig",
    "lr_scheduler": f"{COMPONENTS}.optim.optimizer:LRSchedulerConfig",
    "optimizer": "torch.optim:AdamW",
    "model": "nemo_automodel:NeMoAutoModelForCausalLM.from_pretrained",
    "model.backend": f"{COMPONENTS}.models.common.utils:BackendConfig",
    "peft": f"{COMPONENTS}._peft.lora:PeftConfig",
    "checkpoint": f"{COMPONENTS}.checkpoint.config:CheckpointingConfig",
    "distributed": f"{COMPONENTS}.distributed.config:FSDP2Config",
    "distributed.moe": f"{COMPONENTS}.distributed.config:MoEParallelizerConfig",
    "distributed.pipeline": f"{COMPONENTS}.distributed.pipelining.config:PipelineConfig",
    "distributed.mp_policy": "torch.distributed.fsdp:MixedPrecisionPolicy",
    "packed_sequence": f"{COMPONENTS}.datasets.loader:NeatPackingConfig",
    "dataloader": f"{COMPONENTS}.datasets.loader:DataloaderConfig",
    "validation_dataloader": f"{COMPONENTS}.datasets.loader:DataloaderConfig",
    "dataset": f"{COMPONENTS}.datasets.llm.chat_dataset:ChatDatasetConfig",
    "validation_dataset": f"{COMPONENTS}.datasets.llm.chat_dataset:ChatDatasetConfig",
    "freeze_config": f"{COMPONENTS}.utils.model_utils:FreezeConfig",
    "prewarm": f"{COMPONENTS}.training.prewarm:PrewarmConfig",
    "embedding_row_repair": f"{COMPONENTS}.training.embedding_row_repair:EmbeddingRowRepairConfig",
    "mfu": "nemo_automodel._transformers.mfu:MFUConfig",
    "compile": f"{COMPONENTS}.utils.compile_utils:CompileConfig",
    "fp8": f"{COMPONENTS}.quantization.fp8:FP8Config",
    "wandb": f"{COMPONENTS}.loggers.loggers:WandbConfig",
    "mlflow": f"{COMPONENTS}.loggers.loggers:MLflowConfig",
    "comet": f"{COMPONENTS}.loggers.loggers:CometConfig",
}
# Values that Automodel's recipe reads by itself, or beside the fields of a class.
READ: dict[str, dict[str, Any]] = {
    "": {"nvtx": bool, "sdpa_method": list[str] | None},
    "dist_env": {"backend": Literal["nccl", "gloo"], "timeout_minutes": int},
    "clip_grad_norm": {"backend": Literal["triton", "te"]},
    "packed_sequence": {"packing_strategy": Literal["neat", "thd"]},
    "distributed": {
        "pp_size": int, "dp_replicate_size": int | None, "moe": dict, "pipeline": dict,
        "activation_checkpointing": bool | Literal["full", "selective"],
    },
    "loss_fn": {"_target_": str},
    "optimizer": {"_target_": str},
}  # fmt: skip
# What our own sections say; two places for one value would be one too many.
OURS = {
    "seed": "run.seed",
    "step_scheduler.max_steps": "train.train_iters",
    "step_scheduler.num_epochs": "train.train_iters",
    "step_scheduler.global_batch_size": "train.global_batch_size",
    "step_scheduler.local_batch_size": "train.micro_batch_size",
    "step_scheduler.val_every_steps": "train.eval_interval",
    "step_scheduler.ckpt_every_steps": "checkpoint.save_interval",
    "step_scheduler.preemption_signal": "nothing: SIGTERM and Ctrl-C always save",
    "checkpoint.checkpoint_dir": "run.home",
    "checkpoint.enabled": "nothing: a run always keeps checkpoints",
    "checkpoint.restore_from": "nothing: the same command continues",
    "checkpoint.max_recent_checkpoints": "checkpoint.most_recent_k",
    "model.pretrained_model_name_or_path": "run.model",
    "model.force_hf": "engine=transformers",
    "optimizer.lr": "optimizer.lr",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.eps": "optimizer.adam_eps",
    "lr_scheduler.max_lr": "optimizer.lr",
    "lr_scheduler.min_lr": "optimizer.min_lr",
    "lr_scheduler.lr_decay_style": "scheduler.lr_decay_style",
    "lr_scheduler.lr_warmup_steps": "scheduler.lr_warmup_iters",
    "clip_grad_norm.max_norm": "optimizer.clip_grad",
    "distributed.strategy": "engine.strategy",
    "peft.use_dora": "nothing: such adapters cannot be merged here",
    "dataset.path_or_dataset_id": "engine.chats.train",
    "validation_dataset.path_or_dataset_id": "engine.chats.valid",
}
TRUSTED = ("nemo_automodel.", "torch.optim.", "torch.distributed.", "torch.nn.")
HERE = "engine.overrides"


def apply_overrides(recipe: dict[str, Any], engine: AutomodelEngine, origins: Mapping[str, str]) -> dict[str, Any]:
    """The recipe with `engine.overrides` in it.

    Args:
        origins: "file:line" by dotted key of the whole configuration, for the error message.

    Raises:
        UserError: an unknown key, a value of a wrong type, a key that one of our sections sets, foreign code in a
            `_target_`, or packing that would let documents see each other.
    """
    for key, value in leaves(engine.overrides, recipe):
        _check(key, value, engine, origins)
    merged = merge(recipe, engine.overrides)
    _refuse_leaking_packing(merged, origins)
    return merged


def leaves(tree: dict[str, Any], recipe: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; a mapping is a value where nothing is known to lie below it."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and (key in TAKERS or key in READ):
            yield from leaves(value, recipe, f"{key}.")
        else:
            yield key, value


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, mapping by mapping."""
    both = {
        name: merge(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }
    return base | both


def _check(key: str, value: Any, engine: AutomodelEngine, origins: Mapping[str, str]) -> None:
    section, _, name = key.rpartition(".")
    where = f"{HERE}.{key}"
    if key in OURS:
        raise refusal(where, "this is set elsewhere", origins, f"set {OURS[key]}")
    if section in ("dataset", "validation_dataset") and engine.data != "chat":
        raise refusal(where, "our packed rows have no such setting", origins, "use engine.data=chat")
    if name == "_target_":
        _check_target(where, value, engine, origins)
    known = READ.get(section, {}) | taken(section, engine)
    if not section:
        known |= dict.fromkeys(name for name in (*TAKERS, *READ) if name and "." not in name)
    if name not in known:
        taker = TAKERS.get(section, "recipe").rpartition(":")[2] or "recipe"
        remedy = did_you_mean(name, known, f"it has: {', '.join(sorted(known))}")
        raise refusal(where, f"Automodel's {taker} has no such field", origins, remedy)
    hint = known[name]
    if has_type(hint, value, strict=not isinstance(value, (list, dict))) is False:
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        raise refusal(where, f"{value!r} is not of type {wanted}", origins)


def taken(section: str, engine: AutomodelEngine) -> dict[str, Any]:
    """Names that a section takes, each with its type, or with None where the type is not written down."""
    path = TAKERS.get(section)
    if path is None:
        return {}
    if section == "distributed" and engine.strategy == "ddp":
        path = path.replace("FSDP2Config", "DDPConfig")
    module, _, attributes = path.partition(":")
    taker: Any = reduce(getattr, attributes.split("."), importlib.import_module(module))
    names = [field.name for field in fields(taker)] if is_dataclass(taker) else [*inspect.signature(taker).parameters]
    try:
        hints = typing.get_type_hints(taker if is_dataclass(taker) or not inspect.isclass(taker) else taker.__init__)
    except NameError:  # a type that only type checkers import
        hints = {}
    return {name: hints.get(name) for name in names}


def _check_target(where: str, value: Any, engine: AutomodelEngine, origins: Mapping[str, str]) -> None:
    if not engine.allow_custom_targets and not str(value).startswith(TRUSTED):
        what = f"'{value}' names code outside Automodel and torch, which would be imported and called"
        raise refusal(where, what, origins, "set engine.allow_custom_targets=true if you trust it")


def _refuse_leaking_packing(recipe: dict[str, Any], origins: Mapping[str, str]) -> None:
    """THD packing keeps documents apart in Transformer Engine's attention only; with sdpa they see each other."""
    packing, attention = recipe.get("packed_sequence", {}), recipe["model"]["backend"]["attn"]
    if packing.get("packing_strategy") == "thd" and attention != "te":
        what = f"thd with attn={attention} lets the documents of a row see each other"
        remedy = "use packing_strategy=neat, or engine.backend.attn=te on a GPU"
        raise refusal(f"{HERE}.packed_sequence.packing_strategy", what, origins, remedy)
