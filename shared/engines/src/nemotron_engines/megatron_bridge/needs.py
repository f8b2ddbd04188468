"""What Megatron-Bridge needs of a machine, for the checks before a start."""

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nemotron_engines.checks import base_packages, disk_bytes, in_billions, size_of
from nemotron_engines.megatron_bridge.optimizer import optimizer_bytes
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.megatron_bridge.splits import split_problems, unpadded
from nemotron_engines.megatron_bridge.versions import OLDEST_BRIDGE, TRIED
from nemotron_engines.modeling.described import fields_of
from nemotron_engines.overrides import foreign_code
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from nemotron_shared.runtime.engine import Inputs
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Needs, Problem

PYTHON = SpecifierSet("==3.12.*")
CHECKPOINT_MARK = "latest_train_state.pt"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
ON_THE_OPTIMIZER = ("optimizer_cpu_offload", "use_precision_aware_optimizer")


def problems(config: SupervisedConfig[MegatronBridgeEngine], inputs: Inputs) -> Iterator[Problem]:
    """What is wrong with the config or with the model that it starts from."""
    engine, model = config.engine, inputs.get("model")
    if fields := fields_of(config, inputs):
        yield from split_problems(engine, fields, getattr(config.train, "seq_length", None))
    if not isinstance(config.train, PretrainTrain):
        yield from unpadded(engine)
    yield from foreign_code(engine.overrides)
    if engine.keep_checkpoint and engine.peft.scheme is not None:
        what = "engine.keep_checkpoint: with adapters, Megatron's checkpoint holds no weights to start from"
        yield Problem(what, "leave it off: the published model has the adapters merged into its weights")
    if model is None:
        if engine.start_from == "state" and config.run.model is None:
            yield Problem("engine.start_from=state: run.model names no model to go on from", "set run.model")
        return
    kept = (model.path / "megatron" / CHECKPOINT_MARK).is_file()
    if engine.start_from == "state" and not kept:
        what = f"engine.start_from=state: {model.reference} holds no Megatron checkpoint"
        yield Problem(what, "train it with engine.keep_checkpoint=true, or set engine.start_from=weights")
    if engine.start_from == "weights" and not kept and not any((model.path / name).is_file() for name in WEIGHTS):
        what = f"{model.reference} holds no weights in safetensors to start from"
        yield Problem(what, "give another run.model")


def needs(config: SupervisedConfig[MegatronBridgeEngine], inputs: Inputs, machine: Machine) -> Needs:
    """Packages, layout, memory and disk."""
    engine, size = config.engine, size_of(config, inputs)
    pretraining = isinstance(config.train, PretrainTrain)
    tensor, pipeline = engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size
    expert = {
        "engine.expert_model_parallel_size": engine.expert_model_parallel_size,
        "engine.expert_tensor_parallel_size": engine.expert_tensor_parallel_size,
        "engine.pipeline_model_parallel_size": pipeline,
    }
    on_gpu = bool(machine.gpus) and engine.device != "cpu"
    # the replacements that let a CPU run Megatron's loop fit one pair of versions
    versions = {name: f"=={version}" for name, version in TRIED.items()}
    if on_gpu:
        versions = {"megatron-core": "", "megatron-bridge": f">={'.'.join(map(str, OLDEST_BRIDGE))}"}
    others: list[Problem] = []
    if not pretraining and not on_gpu:
        what = "engine megatron_bridge cannot fine-tune without a GPU: packed rows need attention of Transformer Engine"
        others.append(Problem(what, "run it on GPUs, or use engine=transformers"))
    per_process, kept = _bytes_per_process(config, size.total - size.experts, size.experts, machine.processes)
    weight = 4 if engine.mixed_precision is None else 2
    checkpoint = 0 if engine.peft.scheme else (weight + (8 if weight == 4 else 12)) * size.total
    return Needs(
        packages=(*(Requirement(name + range_) for name, range_ in versions.items()), *base_packages()),
        container=engine.container,
        python=PYTHON,
        device=engine.device,
        made_for=engine.world_size if engine.world_size != machine.processes else None,
        shared=[
            {
                "engine.tensor_model_parallel_size": tensor,
                "engine.pipeline_model_parallel_size": pipeline,
                "engine.context_parallel_size": engine.context_parallel_size,
            },
            expert,
        ],
        rows=config.rows_per_step,
        micro=config.train.micro_batch_size or (None if pretraining else 1),
        process_bytes=per_process,
        kept=f"{kept} of {in_billions(size.total)}"
        + (f" over {machine.processes} processes" if machine.processes > 1 else ""),
        **disk_bytes(config, checkpoint, weight * size.total),
        others=tuple(others),
    )


def _bytes_per_process(
    config: SupervisedConfig[MegatronBridgeEngine], dense: int, experts: int, processes: int
) -> tuple[int, str]:
    """What a process keeps, and its name: its part of the weights and gradients, and of an optimizer that is shared
    out over all that hold the same part."""
    engine = config.engine
    pipeline = engine.pipeline_model_parallel_size
    dense_split = engine.tensor_model_parallel_size * pipeline
    expert_split = engine.expert_model_parallel_size * engine.expert_tensor_parallel_size * pipeline
    part = dense // dense_split + experts // expert_split
    weight = 4 if engine.mixed_precision is None else 2
    if engine.peft.scheme is not None:
        return weight * part, "the weights"
    optimizer = engine.overrides.get("optimizer")
    if isinstance(optimizer, dict) and any(optimizer.get(name) for name in ON_THE_OPTIMIZER):
        return 2 * weight * part, "weights and gradients"
    moments = optimizer_bytes(engine, unknown=2)  # no more than is certain
    owned = (dense + experts) // max(processes, 1)
    return 2 * weight * part + moments * owned, "weights, gradients and optimizer"
