"""Checks before NeMo-RL starts: rules between keys that it checks late or not at all, and its requirements of a
machine.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nemotron_engines.checks import in_billions, size_of
from nemotron_engines.estimate.memory import Layout
from nemotron_engines.nemo_rl.installation import ask, find_installation, how_to_get
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.training import code_in, not_finished
from nemotron_engines.nemo_rl.translate import Places, build, shared_out
from nemotron_engines.nemo_rl.versions import VERSIONS, load_bases
from nemotron_engines.overrides import at, leaves, section
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import OPTION
from nemotron_shared.system.errors import Finding, UserError, problem

PLACEHOLDER = "/path/to/"
PACKAGE = "nemo-rl"
RAY_CLUSTER = Path("/tmp/ray/ray_current_cluster")


def needs(
    config: TrainingConfig[NeMoRLEngine], inputs: Inputs, machine: Machine, algorithm: str, places: Places
) -> Needs:
    """Require one driver, the recipe's version, and the layout's number of GPUs."""
    lacks = tuple(_lacking(config, inputs, machine, algorithm, places))
    few = () if config.engine.stop_before_training else tuple(_gpus(config, machine, algorithm, places))
    return Needs(device="cpu", others=lacks, others_of_layout=few)


def _lacking(
    config: TrainingConfig[NeMoRLEngine], inputs: Inputs, machine: Machine, algorithm: str, places: Places
) -> Iterator[Finding]:
    engine = config.engine
    if machine.processes > 1:
        what = f"engine nemo_rl needs one process, not {machine.processes}: each would start a training"
        yield problem(what, "start it without torchrun (run.nproc_per_node=1); Ray starts the workers on all nodes")
    if engine.load_path is not None and machine.sees_files:
        yield from not_finished(engine.load_path)
    known = VERSIONS[engine.version]
    if machine.is_here:
        try:
            find_installation(engine)
        except UserError as error:
            yield problem(error.message, error.remedy)
    elif machine.knows_packages and (found := machine.version_of(PACKAGE)) != known.package:
        what = f"NeMo-RL {found or 'not found'}, but this recipe is written for {known.package}"
        yield problem(what, how_to_get(engine.version))
    values = build(config, algorithm, places, load_bases(engine.version)[engine.base].values)
    left = [key for key, value in leaves(values) if PLACEHOLDER in str(value)]
    if left:
        what = f"this recipe needs paths for: {', '.join(left)}"
        yield problem(what, f"set ++engine.overrides.{left[0]}=PATH")
    model = inputs.get("model")
    if model is not None and not model.trusted and (code := code_in(model.path)):
        what = f"{model.path} holds Python files that NeMo-RL would run: {', '.join(code)}"
        yield problem(what, f"read them, then add {OPTION} to the command")
    cluster, memory = values["cluster"], min((gpu.memory for gpu in machine.gpus), default=0)
    gpus, parameters = cluster["num_nodes"] * cluster["gpus_per_node"], size_of(config, inputs).total
    has_them = not engine.stop_before_training and len(machine.gpus) * machine.nodes >= gpus
    if has_them and memory and 2 * parameters > gpus * memory:
        what = f"the weights of {in_billions(parameters)} do not fit into {gpus} GPUs ({machine.gpus[0].name})"
        yield problem(what, "use more GPUs: engine.num_nodes, engine.gpus_per_node")


def _gpus(config: TrainingConfig[NeMoRLEngine], machine: Machine, algorithm: str, places: Places) -> Iterator[Finding]:
    """Require the layout's number of GPUs."""
    values = build(config, algorithm, places, load_bases(config.engine.version)[config.engine.base].values)
    nodes, each = values["cluster"]["num_nodes"], values["cluster"]["gpus_per_node"]
    judges = ((values.get("env") or {}).get("nemo_gym") or {}).get("num_gpu_nodes", 0)
    wanted = (nodes + judges) * each
    found, where = _gpus_there(config.engine, machine)
    if found < wanted:
        layout = f"{nodes} nodes x {each}" + (f", plus {judges} nodes for judge models" if judges else "")
        what = (
            f"NeMo-RL needs {wanted} GPUs here ({layout}: engine.num_nodes, engine.gpus_per_node); {where} has {found}"
        )
        yield problem(
            what,
            f"request them: --run PROFILE run.env.nodes={nodes + judges} run.env.gpus_per_node={each}, or use a "
            "Ray cluster that has them; engine.stop_before_training=true does everything that needs no GPU",
        )


def _gpus_there(engine: NeMoRLEngine, machine: Machine) -> tuple[int, str]:
    """How many GPUs there are, and where: the driver would join a running Ray cluster, which only NeMo-RL's own
    environment can query.
    """
    there = len(machine.gpus) * machine.nodes
    if not machine.is_here:
        return there, "the described machine"
    if not (os.environ.get("RAY_ADDRESS") or RAY_CLUSTER.is_file()):
        return there, "this machine"
    try:
        installation = find_installation(engine)
    except UserError:  # reported on its own
        return there, "this machine"
    with tempfile.TemporaryDirectory() as folder:
        answer = ask(installation, Path(folder) / "gpus.log", "--gpus")
    return answer["gpus"], answer["where"]


VERIFIERS = ("hf_math_verify", "dapo_math_verify")
OWN_PLANS = "examples.custom_parallel."
TRAINING_SERVER = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
SIZES = ("tensor_model", "context", "pipeline_model", "expert_model", "expert_tensor")
READ = (
    *(f"policy.megatron_cfg.{size}_parallel_size" for size in SIZES),
    *(f"policy.megatron_cfg.{name}" for name in ("enabled", "activation_checkpointing")),
    *(f"policy.dtensor_cfg.{name}" for name in ("tensor_parallel_size", "context_parallel_size",
                                                "activation_checkpointing", "custom_parallel_plan")),
    *(f"policy.generation.vllm_cfg.{name}" for name in ("tensor_parallel_size", "pipeline_parallel_size",
      "expert_parallel_size", "async_engine", "expose_http_server", "max_model_len")),
    "policy.generation.colocated", "policy.generation.backend", "policy.generation.max_new_tokens",
    "policy.train_global_batch_size", "policy.make_sequence_length_divisible_by", "policy.sequence_packing",
    "policy.router_replay.enabled", "loss_fn.force_on_policy_ratio", "grpo.adv_estimator",
    "grpo.max_num_epochs", "sft.max_num_epochs", "checkpointing.metric_name", "data.default",
    "env.math", "env.should_use_nemo_gym", "env.nemo_gym.config_paths", "env.nemo_gym.num_gpu_nodes",
    "env.nemo_gym.genrm_compare_resources_server.resources_servers.genrm_compare.num_rollouts_per_prompt",
)  # fmt: skip
"""Keys of NeMo-RL's own configs that this module reads; the tables hold these and the dialect's."""


def check_config(config: TrainingConfig[NeMoRLEngine], algorithm: str, places: Places) -> dict[str, Any]:
    """Check a config for a dry run; returns NeMo-RL's config without values that only its own base has.

    Raises:
        UserError: NeMo-RL would refuse it, or would do something different from what it says.
    """
    base = load_bases(config.engine.version)[config.engine.base]
    if base.algorithm != algorithm:
        raise UserError(
            f"engine.base: {config.engine.base} is a config of {base.algorithm}, but this stage runs {algorithm}"
        )
    values = build(config, algorithm, places, base.values, complete=False)
    check(values, config.engine, algorithm)
    return values


def render(config: TrainingConfig[NeMoRLEngine], algorithm: str, places: Places) -> str:
    """NeMo-RL's config, without the parts that depend on a run."""
    values = yaml.safe_dump(check_config(config, algorithm, places), sort_keys=False, allow_unicode=True)
    return f"# over {config.engine.base} of NeMo-RL {config.engine.version}, which has further keys\n{values}"


def check(values: dict[str, Any], engine: NeMoRLEngine, algorithm: str) -> None:
    """Check a configuration.

    Raises:
        UserError: lists all problems.
    """
    found = [*_permissions(values, engine), *_layout_problems(values, engine), *_length_problems(values, engine)]
    if algorithm == "grpo":
        found += [*_rollout_problems(values), *_gym_problems(values), *_replay_problems(values)]
    if found:
        raise UserError("\n".join(found))


def _permissions(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """Require opt-in for a recipe that upstream has disabled, and for a parallel plan, which is Python code that
    NeMo-RL imports."""
    if engine.experimental and not engine.allow_experimental:
        reasons = "".join(f"\n    {reason}" for reason in engine.experimental)
        yield f"this recipe is experimental:{reasons}\n  to try it anyway: engine.allow_experimental=true"
    name = "policy.dtensor_cfg.custom_parallel_plan"
    plan = at(values, name)
    if plan is not None and not str(plan).startswith(OWN_PLANS) and not engine.allow_custom_plan:
        yield f"{name} '{plan}' is code from outside {OWN_PLANS}*; to allow it, set engine.allow_custom_plan=true"


def _layout_problems(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """Check that the parallel sizes divide the GPUs of training and of generation, and that the global batch divides
    into whole micro batches on every copy of the model."""
    policy, cluster = values["policy"], values["cluster"]
    found = shared_out(values, cluster["num_nodes"], cluster["gpus_per_node"])
    train, generation = found.train, found.generation
    if train < 1:
        yield (
            f"no GPU is left for training: {engine.num_nodes} nodes x {engine.gpus_per_node} GPUs, of which generation "
            f"takes {generation} (policy.generation.colocated.resources)"
        )
    elif train % found.model:
        yield (
            f"{train} training GPUs are not a multiple of {found.model} (tensor {found.tensor} x context "
            f"{found.context} x pipeline {found.pipeline}): change engine.num_nodes or the sizes"
        )
    else:
        copies, batch, micro = found.copies, policy["train_global_batch_size"], policy["train_micro_batch_size"]
        if batch % (micro * copies):
            yield (
                f"policy.train_global_batch_size {batch} is not a multiple of {micro} x {copies} "
                "(train.micro_batch_size x copies of the model)"
            )
    if train >= 1 and train % found.experts:
        yield f"{train} training GPUs are not a multiple of {found.experts} (expert x expert tensor x pipeline)"
    vllm = at(values, "policy.generation.vllm_cfg")
    if at(values, "policy.generation.backend") != "vllm" or not vllm:
        return
    served = vllm["tensor_parallel_size"] * vllm["pipeline_parallel_size"]
    if generation % served:
        sizes_of = "policy.generation.vllm_cfg: tensor x pipeline"
        yield f"{generation} generation GPUs are not a multiple of {served} ({sizes_of})"
    expert = vllm.get("expert_parallel_size", 1)
    if expert > 1 and expert % vllm["tensor_parallel_size"]:
        yield f"policy.generation.vllm_cfg.expert_parallel_size {expert} is not a multiple of its tensor_parallel_size"


def _length_problems(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """Check sequence lengths, and the metric that compares checkpoints."""
    whole, new = engine.max_total_sequence_length, at(values, "policy.generation.max_new_tokens", 0)
    if new > whole:  # a completion is part of the sequence
        yield f"grpo.max_new_tokens {new} exceeds engine.max_total_sequence_length {whole}"
    divisor = values["policy"]["make_sequence_length_divisible_by"]
    if whole % divisor:  # packed context-parallel sequences are cut into equal parts
        name = "policy.make_sequence_length_divisible_by"
        yield f"engine.max_total_sequence_length {whole} is not a multiple of {name} {divisor}"
    metric = values["checkpointing"]["metric_name"]
    # choosing the best checkpoint by a validation metric needs a validation before each checkpoint
    if metric is not None and not metric.startswith(("val:", "train:")):
        yield f"checkpointing.metric_name '{metric}' must begin with 'val:' or 'train:'"
    elif str(metric).startswith("val:") and at(values, "grpo.val_period", at(values, "sft.val_period")) <= 0:
        yield f"checkpointing.metric_name '{metric}' needs validation data, and there is none"


def _rollout_problems(values: dict[str, Any]) -> Iterator[str]:
    """Check that a step's completions divide into training batches, and that there is a verifier."""
    grpo, batch = values["grpo"], values["policy"]["train_global_batch_size"]
    completions = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    if completions % batch:
        yield (
            f"{completions} completions per step (grpo.num_prompts_per_step x num_generations_per_prompt) are not a "
            f"multiple of policy.train_global_batch_size {batch}"
        )
    elif completions != batch and at(values, "loss_fn.force_on_policy_ratio"):
        yield f"loss_fn.force_on_policy_ratio needs policy.train_global_batch_size {completions}, not {batch}"
    # without a known verifier NeMo-RL swallows the error and every reward is 0
    verifier = at(values, "env.math.math_verify_impl")
    if at(values, "env.math") is not None and verifier not in VERIFIERS:
        yield f"env.math.math_verify_impl is {verifier!r}: every reward would be 0; set it to {' or '.join(VERIFIERS)}"


def _gym_problems(values: dict[str, Any]) -> Iterator[str]:
    """NeMo-Gym needs vLLM over HTTP, and uses the whole validation set."""
    if not at(values, "env.should_use_nemo_gym"):
        return
    for name in ("async_engine", "expose_http_server"):
        if at(values, f"policy.generation.vllm_cfg.{name}") is not True:
            remedy = f"add policy.generation.vllm_cfg.{name}=true"
            yield f"NeMo-Gym needs policy.generation.vllm_cfg.{name}: true\n  {remedy}"
    if values["grpo"]["max_val_samples"] is not None:
        yield "NeMo-Gym validates on the whole set: grpo.max_val_samples must be null"
    paths = at(values, "env.nemo_gym.config_paths", [])
    if TRAINING_SERVER not in paths:
        yield f"env.nemo_gym.config_paths lacks the policy's server, {TRAINING_SERVER}"
    compared = at(values, "env.nemo_gym.genrm_compare_resources_server.resources_servers.genrm_compare")
    group = values["grpo"]["num_generations_per_prompt"]
    if compared and compared.get("num_rollouts_per_prompt") != group:
        yield (
            f"genrm_compare compares num_rollouts_per_prompt {compared.get('num_rollouts_per_prompt')} answers, but "
            f"grpo.num_generations_per_prompt is {group}; with too few every answer gets the default score"
        )


def _replay_problems(values: dict[str, Any]) -> Iterator[str]:
    """Check router replay: vLLM reports each token's experts, and Megatron reuses them."""
    name = "policy.router_replay.enabled"
    if not at(values, name):
        return
    if not at(values, "policy.megatron_cfg.enabled"):
        yield f"{name} needs policy.megatron_cfg.enabled: true"
    if at(values, "policy.generation.backend") != "vllm":
        yield f"{name} needs policy.generation.backend: vllm"


# How NeMo-RL shares a model and its rows out over GPUs, for estimates.


def layout(config: TrainingConfig, plain: Layout) -> Layout:
    """The layout in NeMo-RL's own recipe, with `engine.overrides` on top."""
    engine: Any = config.engine
    base = section(load_bases(engine.version)[engine.base].values, "policy")
    above = section(engine.overrides, "policy")
    megatron = {**section(base, "megatron_cfg"), **section(above, "megatron_cfg")}
    tensors = {**section(base, "dtensor_cfg"), **section(above, "dtensor_cfg")}
    by_megatron = bool(megatron.get("enabled"))
    split = megatron if by_megatron else tensors
    return replace(
        plain,
        tensor=split.get("tensor_model_parallel_size" if by_megatron else "tensor_parallel_size", 1),
        pipeline=megatron.get("pipeline_model_parallel_size", 1) if by_megatron else 1,
        context=split.get("context_parallel_size", 1),
        expert=megatron.get("expert_model_parallel_size", 1) if by_megatron else 1,
        gradient=2 if by_megatron else 4,
        shards=not by_megatron,
        recomputed="everything" if split.get("activation_checkpointing") else "nothing",
    )
