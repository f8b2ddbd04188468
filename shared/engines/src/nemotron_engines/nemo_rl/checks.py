"""Rules between keys that NeMo-RL checks late, on the cluster, or not at all.

Each rule looks at the whole configuration and gives the problems it found; `check` raises them together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nemotron_engines.nemo_rl.compose import at
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.table import Node, type_fault
from nemotron_shared.errors import UserError

VERIFIERS = ("hf_math_verify", "dapo_math_verify")
OWN_PLANS = "examples.custom_parallel."
TRAINING_SERVER = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"


@dataclass(frozen=True)
class Layout:
    """How the GPUs are shared out. `data` is not whole where the sizes do not divide the GPUs."""

    train_gpus: int
    generation_gpus: int
    tensor: int
    context: int
    pipeline: int
    expert: int
    expert_tensor: int

    @property
    def model_parallel(self) -> int:
        """GPUs that hold one copy of the model."""
        return self.tensor * self.context * self.pipeline

    @property
    def data(self) -> float:
        """Copies of the model."""
        return self.train_gpus / self.model_parallel


def check(values: dict[str, Any], schema: Node, engine: NeMoRLEngine, algorithm: str) -> None:
    """Judge a whole configuration.

    Raises:
        UserError: naming everything that is wrong.
    """
    found = [problem for rule in RULES[algorithm] for problem in rule(values, engine)]
    found += list(missing(schema, values))
    if found:
        raise UserError("\n".join(found))


def layout_of(values: dict[str, Any]) -> Layout:
    """The sizes of the backend that trains, and the GPUs of training and of generation."""
    nodes, each = values["cluster"]["num_nodes"], values["cluster"]["gpus_per_node"]
    train = generation = nodes * each
    apart = at(values, "policy.generation.colocated", {"enabled": True})
    if not apart["enabled"]:
        generation_nodes = at(apart, "resources.num_nodes") or 1
        generation = generation_nodes * (at(apart, "resources.gpus_per_node") or each)
        train = nodes * each - generation
    policy = values["policy"]
    if at(policy, "megatron_cfg.enabled"):
        sizes = policy["megatron_cfg"]
        pipeline, expert = sizes["pipeline_model_parallel_size"], sizes["expert_model_parallel_size"]
        tensor, expert_tensor = sizes["tensor_model_parallel_size"], sizes["expert_tensor_parallel_size"]
        return Layout(train, generation, tensor, sizes["context_parallel_size"], pipeline, expert, expert_tensor)
    sizes = policy["dtensor_cfg"]
    return Layout(train, generation, sizes["tensor_parallel_size"], sizes["context_parallel_size"], 1, 1, 1)


def gpus_divide(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """The parallel sizes must divide the GPUs of their side."""
    layout = layout_of(values)
    if layout.train_gpus < 1:
        yield (
            f"no GPU is left to train: {engine.num_nodes} nodes x {engine.gpus_per_node} GPUs, of which generation "
            f"takes {layout.generation_gpus} (policy.generation.colocated.resources)"
        )
    elif layout.train_gpus % layout.model_parallel:
        yield (
            f"{layout.train_gpus} GPUs that train are no multiple of {layout.model_parallel} (tensor {layout.tensor} "
            f"x context {layout.context} x pipeline {layout.pipeline}): change engine.num_nodes or the sizes"
        )
    experts = layout.expert * layout.expert_tensor * layout.pipeline
    if layout.train_gpus >= 1 and layout.train_gpus % experts:
        yield f"{layout.train_gpus} GPUs that train are no multiple of {experts} (expert x expert tensor x pipeline)"


def generation_divides(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """vLLM's sizes must divide the GPUs that generate."""
    sizes = at(values, "policy.generation.vllm_cfg")
    if at(values, "policy.generation.backend") != "vllm" or not sizes:
        return
    gpus = layout_of(values).generation_gpus
    each = sizes["tensor_parallel_size"] * sizes["pipeline_parallel_size"]
    if gpus % each:
        yield f"{gpus} GPUs that generate are no multiple of {each} (policy.generation.vllm_cfg: tensor x pipeline)"
    expert = sizes.get("expert_parallel_size", 1)
    if expert > 1 and expert % sizes["tensor_parallel_size"]:
        yield f"policy.generation.vllm_cfg.expert_parallel_size {expert} is no multiple of its tensor_parallel_size"


def batch_divides(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """The global batch must be whole micro batches on every copy of the model."""
    policy, data = values["policy"], layout_of(values).data
    batch, micro = policy["train_global_batch_size"], policy["train_micro_batch_size"]
    if data >= 1 and data == int(data) and batch % (micro * int(data)):
        yield (
            f"policy.train_global_batch_size {batch} is no multiple of {micro} x {int(data)} (train.micro_batch_size x "
            "copies of the model)"
        )


def rollouts_divide(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A step's completions must be whole training batches."""
    grpo, batch = values["grpo"], values["policy"]["train_global_batch_size"]
    completions = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    if completions % batch:
        yield (
            f"{completions} completions per step (grpo.num_prompts_per_step x num_generations_per_prompt) are no "
            f"multiple of policy.train_global_batch_size {batch}"
        )
    elif completions != batch and at(values, "loss_fn.force_on_policy_ratio"):
        yield f"loss_fn.force_on_policy_ratio needs policy.train_global_batch_size {completions}, it is {batch}"


def lengths_fit(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A completion is part of the sequence; packed context-parallel sequences are cut into even parts."""
    whole, new = engine.max_total_sequence_length, at(values, "policy.generation.max_new_tokens", 0)
    if new > whole:
        yield f"grpo.max_new_tokens {new} is more than engine.max_total_sequence_length {whole}"
    divisor = values["policy"]["make_sequence_length_divisible_by"]
    if whole % divisor:
        name = "policy.make_sequence_length_divisible_by"
        yield f"engine.max_total_sequence_length {whole} is no multiple of {name} {divisor}"


def saves_in_time(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A checkpoint that is due after the end would make every kill lose the whole run."""
    steps = at(values, "grpo.max_num_steps") or at(values, "sft.max_num_steps")
    period = values["checkpointing"]["save_period"]
    if period > steps:
        yield f"checkpoint.save_interval {period} is more than train.train_iters {steps}: a kill would lose everything"


def metric_is_measured(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A best checkpoint by a validation metric needs a validation before each checkpoint."""
    metric = values["checkpointing"]["metric_name"]
    period = at(values, "grpo.val_period", at(values, "sft.val_period"))
    if metric is not None and not metric.startswith(("val:", "train:")):
        yield f"checkpointing.metric_name '{metric}' must begin with 'val:' or 'train:'"
    elif metric is not None and metric.startswith("val:") and period <= 0:
        yield f"checkpointing.metric_name '{metric}' needs validation, but there is no validation data"


def gym_is_reachable(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """NeMo-Gym talks to vLLM over HTTP and takes the validation set as it is."""
    if not at(values, "env.should_use_nemo_gym"):
        return
    for name in ("async_engine", "expose_http_server"):
        if at(values, f"policy.generation.vllm_cfg.{name}") is not True:
            yield f"NeMo-Gym needs policy.generation.vllm_cfg.{name}: true"
    if values["grpo"]["max_val_samples"] is not None:
        yield "NeMo-Gym validates on the whole set: grpo.max_val_samples must be null"
    paths = at(values, "env.nemo_gym.config_paths", [])
    if TRAINING_SERVER not in paths:
        yield f"env.nemo_gym.config_paths lacks {TRAINING_SERVER}, the policy's own server"
    judged = at(values, "env.nemo_gym.genrm_compare_resources_server.resources_servers.genrm_compare")
    group = values["grpo"]["num_generations_per_prompt"]
    if judged and judged.get("num_rollouts_per_prompt") != group:
        yield (
            f"genrm_compare compares num_rollouts_per_prompt {judged.get('num_rollouts_per_prompt')} answers, but "
            f"grpo.num_generations_per_prompt is {group}; with too few every answer gets the default score"
        )


def math_is_verified(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """Without a known verifier NeMo-RL swallows the error and every reward is 0."""
    verifier = at(values, "env.math.math_verify_impl")
    if at(values, "env.math") is not None and verifier not in VERIFIERS:
        yield f"env.math.math_verify_impl is {verifier!r}: every reward would be 0; give {' or '.join(VERIFIERS)}"


def plan_is_known(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A parallel plan is Python code that NeMo-RL imports."""
    plan = at(values, "policy.dtensor_cfg.custom_parallel_plan")
    if plan is not None and not str(plan).startswith(OWN_PLANS) and not engine.trust_remote_code:
        name = "policy.dtensor_cfg.custom_parallel_plan"
        yield f"{name} '{plan}' is code from outside {OWN_PLANS}*; engine.trust_remote_code=true allows it"


def is_allowed(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A recipe that upstream itself has switched off runs only when asked for."""
    if engine.experimental and not engine.allow_experimental:
        reasons = "".join(f"\n    {reason}" for reason in engine.experimental)
        yield f"this recipe is experimental:{reasons}\n  to try it nevertheless: engine.allow_experimental=true"


def missing(schema: Node, values: dict[str, Any]) -> Iterator[str]:
    """Types of the whole, where our sections and the base meet."""
    for name, node in schema.get("keys", {}).items():
        if name in values and type_fault(node, values[name]):
            yield f"{name}: {type_fault(node, values[name])}"


Rule = Callable[[dict[str, Any], NeMoRLEngine], Iterator[str]]
COMMON: tuple[Rule, ...] = (is_allowed, gpus_divide, batch_divides, lengths_fit, saves_in_time, metric_is_measured)
RULES: dict[str, tuple[Rule, ...]] = {
    "sft": (*COMMON, plan_is_known),
    "grpo": (*COMMON, plan_is_known, generation_divides, rollouts_divide, gym_is_reachable, math_is_verified),
}
