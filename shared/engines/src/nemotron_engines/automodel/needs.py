"""Checks before Automodel starts: machine, layout over GPUs, and whether `engine.overrides` fits its recipe.

error: nano3.yaml:31: engine.overrides.step_scheduler.gc_step: Automodel's StepSchedulerConfig has no field 'gc_step'
  did you mean 'gc_every_steps'?
"""

import importlib
import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nemotron_engines.automodel.dialect import CHOICES, KEYS
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.checks import (
    KERNELS,
    base_packages,
    disk_bytes,
    in_billions,
    no_chats,
    size_of,
)
from nemotron_engines.estimate.memory import Layout
from nemotron_engines.kernels import HOW_TO_COMPILE
from nemotron_engines.modeling.architecture import NEMOTRON_H
from nemotron_engines.overrides import ROOT, Strict, foreign_code, is_allowed, leaves, merge
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig, TrainingConfig
from nemotron_shared.config.translation import owned
from nemotron_shared.config.validate import has_type
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import Finding, problem

# The versions we ran; the shim and the recipe subclass use internals that may differ in others.
REQUIRED = {"nemo-automodel": "0.7.0", "transformers": "5.18.0"}
# triton 3.9 refuses an autotune key of Automodel's LoRA kernels while they are imported.
TRITON = Requirement("triton<3.9")
# Values per parameter in the weights' dtype: weight, gradient and Adam's two moments; a checkpoint has no gradient.
WEIGHTS, TRAINED, SAVED = 1, 4, 3
# Equivalents of Transformer Engine's kernels on a CPU.
WITHOUT_TE = {"attn": "sdpa", "linear": "torch", "rms_norm": "torch", "experts": "torch"}


def problems(config: SupervisedConfig[AutomodelEngine], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
    """Problems with the config or with its starting model."""
    model = inputs.get("model")
    if not config.engine.allow_custom_targets:
        yield from foreign_code(config.engine.overrides, "engine.allow_custom_targets")
    if config.engine.data == "chat" and isinstance(config.train, PretrainTrain):
        what = "engine.data=chat: pretraining needs documents"
        yield problem(what, "set engine.data=packed, or use the sft stage")
    if machine.processes == 1 and config.engine.dtype != config.engine.weights_dtype:
        what = f"engine.dtype={config.engine.dtype}: on one process, Automodel computes in the dtype of the weights"
        yield problem(what, f"set engine.weights_dtype={config.engine.dtype}, or start several processes")
    chats = config.engine.chats
    if config.engine.data == "chat":
        files = {"engine.chats.train": chats.train, "engine.chats.valid": chats.valid}
        if machine.sees_files:
            yield from no_chats(files)
        if config.run.data is None and config.run.model is None:
            yield problem("no tokenizer: run.model and run.data are both null", "set run.model=FOLDER")
    elif config.run.data is None:
        what = "engine.data=packed needs run.data, which is null"
        yield problem(what, "set run.data to a data artifact, or set engine.data=chat", "run.data")
    if model is None or not (model.path / "config.json").is_file():
        return
    kind = read_json(model.path / "config.json").get("model_type")
    if kind != NEMOTRON_H:
        what = f"{model.path}: engine 'automodel' trains NemotronH models, not '{kind}'"
        yield problem(what, "use another engine")
    if not list(model.path.glob("*.safetensors")):
        yield problem(f"{model.path}: no safetensors files", "save the model in that format")


def needs(config: SupervisedConfig[AutomodelEngine], inputs: Inputs, machine: Machine) -> Needs:
    """Packages, layout, memory and disk."""
    engine, parameters = config.engine, size_of(config, inputs).total
    wanted = [Requirement(f"{name}=={version}") for name, version in REQUIRED.items()]
    wanted += [one for one in base_packages() if one.name not in REQUIRED]
    wanted += [TRITON] if machine.version_of("triton") else []
    others: list[Finding] = []
    if machine.gpus and not all(map(machine.version_of, KERNELS)):
        others.append(
            problem(
                f"on a GPU, engine 'automodel' needs {' and '.join(KERNELS)}",
                f"{HOW_TO_COMPILE}, or use a container that has them",
            )
        )
    others += [] if machine.gpus else _gpu_only(engine)
    # ddp replicates everything; fsdp2 shards it. With adapters, the other weights have no gradients or optimizer.
    shards = machine.processes if engine.strategy == "fsdp2" else 1
    size = 2 if engine.weights_dtype == "bfloat16" else 4
    trained = (WEIGHTS if engine.peft else TRAINED) * size
    return Needs(
        packages=tuple(wanted),
        container=engine.container,
        python=SpecifierSet(">=3.11,<3.14"),
        shared=[
            {"engine.tp_size": engine.tp_size, "engine.cp_size": engine.cp_size},
            {"engine.ep_size": engine.ep_size},
        ],
        rows=config.rows_per_step,
        micro=config.micro_rows(machine.processes // (engine.tp_size * engine.cp_size)),
        process_bytes=trained * parameters // shards,
        kept=f"{'the weights' if engine.peft else 'weights, gradients and optimizer'} of {in_billions(parameters)}"
        + (f" over {shards} processes" if shards > 1 else ""),
        **disk_bytes(config, 0 if engine.peft else SAVED * size * parameters, size * parameters),
        others=tuple(others),
    )


def _gpu_only(engine: AutomodelEngine) -> Iterator[Finding]:
    """Report GPU-only kernels; on a CPU, Automodel would fail at its first step."""
    asked = {f"backend.{part}": other for part, other in WITHOUT_TE.items() if getattr(engine.backend, part) == "te"}
    asked |= {"peft.use_triton": "false"} if engine.peft and engine.peft.use_triton else {}
    for name, other in asked.items():
        what = "Triton's kernels" if name == "peft.use_triton" else "Transformer Engine's kernels"
        key = f"engine.{name}"
        yield problem(f"{what} need a GPU, but this machine has none", f"on a CPU, set {key}={other}", key)


# How Automodel shares a model and its rows out over GPUs, for estimates.


def layout(config: TrainingConfig, plain: Layout) -> Layout:
    engine: Any = config.engine
    size, frozen = 2 if engine.weights_dtype == "bfloat16" else 4, engine.peft is not None
    return replace(
        plain,
        tensor=engine.tp_size,
        context=engine.cp_size,
        expert=engine.ep_size,
        weight=size,
        gradient=0 if frozen else size,
        optimizer=0 if frozen else 2 * size,
        shards=engine.strategy == "fsdp2",
        spread=engine.strategy == "fsdp2",
        trained=not frozen,
        recomputed="everything" if engine.activation_checkpointing else "nothing",
        activation=2 if engine.dtype == "bfloat16" else 4,
    )


# `engine.overrides`, checked against the classes that take the values.


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
    for foreign in () if engine.allow_custom_targets else foreign_code(engine.overrides, allow, is_allowed):
        raise strict.refusal(str(foreign.key).removeprefix(f"{ROOT}."), foreign.message, foreign.remedy)
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
