"""`engine.overrides`: any value of Automodel's recipe, checked against the classes that take it.

error: nano3.yaml:31: engine.overrides.step_scheduler.gc_step: Automodel's StepSchedulerConfig has no field 'gc_step'
  did you mean 'gc_every_steps'?
"""

import importlib
import inspect
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from typing import Any, Literal

from nemotron_engines.automodel.dialect import CHOICES, KEYS
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.overrides import ROOT, Strict, foreign_code, leaves, merge
from nemotron_engines.targets import is_allowed
from nemotron_shared.config.translation import owned
from nemotron_shared.config.validate import has_type

COMPONENTS = "nemo_automodel.components"
UNMERGED = ("peft.use_dora", "peft.use_rslora")
# Section of the recipe -> dataclass or function of Automodel or torch that takes its values.
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
# Values that Automodel's recipe reads directly, in addition to the fields of a class.
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
    "wandb": {"mode": Literal["online", "offline", "disabled", "shared"]},
}  # fmt: skip


def apply_overrides(recipe: dict[str, Any], engine: AutomodelEngine, origins: Mapping[str, str]) -> dict[str, Any]:
    """The recipe with `engine.overrides` in it.

    Args:
        origins: "file:line" by dotted key of the whole configuration, for the error message.

    Raises:
        UserError: an unknown key, a value of the wrong type, a key that one of our sections sets, foreign code in a
            `_target_`, or packing that would let documents see each other.
    """
    strict = Strict(owned(KEYS) | {f"peft.{name}": f"set engine.peft.{name}" for name in CHOICES}, origins)
    allow = "engine.allow_custom_targets"
    for problem in () if engine.allow_custom_targets else foreign_code(engine.overrides, allow, is_allowed):
        raise strict.refusal(str(problem.key).removeprefix(f"{ROOT}."), problem.message, problem.remedy)
    for key, value in leaves(engine.overrides, is_section=lambda key, below: key in TAKERS or key in READ):
        _check(key, value, engine, strict)
    merged = merge(recipe, engine.overrides)
    # THD packing separates documents in Transformer Engine's attention only; with sdpa they see each other.
    packing, attention = merged.get("packed_sequence", {}), merged["model"]["backend"]["attn"]
    if packing.get("packing_strategy") == "thd" and attention != "te":
        what = f"thd with attn={attention} lets the documents of a row see each other"
        remedy = "use packing_strategy=neat, or engine.backend.attn=te on a GPU"
        raise strict.refusal("packed_sequence.packing_strategy", what, remedy)
    return merged


def _check(key: str, value: Any, engine: AutomodelEngine, strict: Strict) -> None:
    section, _, name = key.rpartition(".")
    strict.require_free(key)
    if key in UNMERGED and value:
        raise strict.refusal(key, "such an adapter cannot be merged into the model", "remove it")
    if section in ("dataset", "validation_dataset") and engine.data != "chat":
        raise strict.refusal(key, "packed rows have no such setting", "use engine.data=chat")
    known = known_names(section, engine.strategy)
    taker = TAKERS.get(section, "recipe").rpartition(":")[2] or "recipe"
    strict.require_known(section, name, known, f"Automodel's {taker}")
    hint = known[name]
    if has_type(hint, value, strict=not isinstance(value, (list, dict))) is False:
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        raise strict.refusal(key, f"{value!r} is not of type {wanted}")


def known_names(section: str, strategy: str = "fsdp2") -> dict[str, Any]:
    """Names that a section accepts, each with its type, or with None if it is not annotated."""
    known = READ.get(section, {}) | taken(section, strategy)
    return known if section else known | dict.fromkeys(name for name in (*TAKERS, *READ) if name and "." not in name)


def taken(section: str, strategy: str) -> dict[str, Any]:
    """Names that a class or function accepts."""
    path = TAKERS.get(section)
    if path is None:
        return {}
    if section == "distributed" and strategy == "ddp":
        path = path.replace("FSDP2Config", "DDPConfig")
    module, _, attributes = path.partition(":")
    taker: Any = reduce(getattr, attributes.split("."), importlib.import_module(module))
    names = [field.name for field in fields(taker)] if is_dataclass(taker) else [*inspect.signature(taker).parameters]
    try:
        hints = typing.get_type_hints(taker if is_dataclass(taker) or not inspect.isclass(taker) else taker.__init__)
    except NameError:  # a type that only type checkers import
        hints = {}
    return {name: hints.get(name) for name in names}
