"""NeMo Automodel's requirements, checked before a start."""

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.checks import (
    KERNELS,
    base_packages,
    disk_bytes,
    in_billions,
    no_chats,
    size_of,
)
from nemotron_engines.kernels import HOW_TO_COMPILE
from nemotron_engines.modeling.facts import NEMOTRON_H
from nemotron_engines.overrides import foreign_code
from nemotron_shared.atomic import read_json
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from nemotron_shared.runtime.engine import Inputs
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs, Problem

# The versions we ran; the shim and the recipe subclass use internals that may differ in others.
REQUIRED = {"nemo-automodel": "0.7.0", "transformers": "5.18.0"}
# triton 3.9 refuses an autotune key of Automodel's LoRA kernels while they are imported.
TRITON = Requirement("triton<3.9")
# Values per parameter in the weights' dtype: weight, gradient and Adam's two moments; a checkpoint has no gradient.
WEIGHTS, TRAINED, SAVED = 1, 4, 3
# Equivalents of Transformer Engine's kernels on a CPU.
WITHOUT_TE = {"attn": "sdpa", "linear": "torch", "rms_norm": "torch", "experts": "torch"}


def problems(config: SupervisedConfig[AutomodelEngine], inputs: Inputs, machine: Machine) -> Iterator[Problem]:
    """Problems with the config or with its starting model."""
    model = inputs.get("model")
    if not config.engine.allow_custom_targets:
        yield from foreign_code(config.engine.overrides, "engine.allow_custom_targets")
    if config.engine.data == "chat" and isinstance(config.train, PretrainTrain):
        what = "engine.data=chat: pretraining needs documents"
        yield Problem(what, "set engine.data=packed, or use the sft stage")
    if machine.processes == 1 and config.engine.dtype != config.engine.weights_dtype:
        what = f"engine.dtype={config.engine.dtype}: on one process, Automodel computes in the dtype of the weights"
        yield Problem(what, f"set engine.weights_dtype={config.engine.dtype}, or start several processes")
    chats = config.engine.chats
    if config.engine.data == "chat":
        files = {"engine.chats.train": chats.train, "engine.chats.valid": chats.valid}
        if machine.sees_files:
            yield from no_chats(files)
        if config.run.data is None and config.run.model is None:
            yield Problem("no tokenizer: run.model and run.data are both null", "set run.model=FOLDER")
    elif config.run.data is None:
        what = "engine.data=packed needs run.data, which is null"
        yield Problem(what, "set run.data to a data artifact, or set engine.data=chat", "run.data")
    if model is None or not (model.path / "config.json").is_file():
        return
    kind = read_json(model.path / "config.json").get("model_type")
    if kind != NEMOTRON_H:
        what = f"{model.path}: engine 'automodel' trains NemotronH models, not '{kind}'"
        yield Problem(what, "use another engine")
    if not list(model.path.glob("*.safetensors")):
        yield Problem(f"{model.path}: no safetensors files", "save the model in that format")


def needs(config: SupervisedConfig[AutomodelEngine], inputs: Inputs, machine: Machine) -> Needs:
    """Packages, layout, memory and disk."""
    engine, parameters = config.engine, size_of(config, inputs).total
    wanted = [Requirement(f"{name}=={version}") for name, version in REQUIRED.items()]
    wanted += [one for one in base_packages() if one.name not in REQUIRED]
    wanted += [TRITON] if machine.version_of("triton") else []
    others: list[Problem] = []
    if machine.gpus and not all(map(machine.version_of, KERNELS)):
        others.append(
            Problem(
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


def _gpu_only(engine: AutomodelEngine) -> Iterator[Problem]:
    """Report GPU-only kernels; on a CPU, Automodel would fail at its first step."""
    asked = {f"backend.{part}": other for part, other in WITHOUT_TE.items() if getattr(engine.backend, part) == "te"}
    asked |= {"peft.use_triton": "false"} if engine.peft and engine.peft.use_triton else {}
    for name, other in asked.items():
        what = "Triton's kernels" if name == "peft.use_triton" else "Transformer Engine's kernels"
        key = f"engine.{name}"
        yield Problem(f"{what} need a GPU, but this machine has none", f"on a CPU, set {key}={other}", key)
