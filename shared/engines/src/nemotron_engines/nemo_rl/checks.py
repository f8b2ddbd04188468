"""Rules between keys that NeMo-RL checks late, on the cluster, or not at all."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.table import Node, at, type_fault
from nemotron_shared.errors import UserError

VERIFIERS = ("hf_math_verify", "dapo_math_verify")
OWN_PLANS = "examples.custom_parallel."
TRAINING_SERVER = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"


def check(values: dict[str, Any], schema: Node, engine: NeMoRLEngine, algorithm: str) -> None:
    """Check a whole configuration.

    Raises:
        UserError: naming everything that is wrong.
    """
    found = [*_permissions(values, engine), *_layout_problems(values, engine), *_length_problems(values, engine)]
    if algorithm == "grpo":
        found += [*_rollout_problems(values), *_gym_problems(values), *_replay_problems(values)]
    # types of the whole, where our sections and the base meet
    for name, node in schema.get("keys", {}).items():
        if name in values and (fault := type_fault(node, values[name])):
            found.append(f"{name}: {fault}")
    if found:
        raise UserError("\n".join(found))


def _permissions(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """A recipe that upstream itself has switched off, and a parallel plan, Python code that NeMo-RL imports, run only
    when asked for."""
    if engine.experimental and not engine.allow_experimental:
        reasons = "".join(f"\n    {reason}" for reason in engine.experimental)
        yield f"this recipe is experimental:{reasons}\n  to try it nevertheless: engine.allow_experimental=true"
    name = "policy.dtensor_cfg.custom_parallel_plan"
    plan = at(values, name)
    if plan is not None and not str(plan).startswith(OWN_PLANS) and not engine.allow_custom_plan:
        yield f"{name} '{plan}' is code from outside {OWN_PLANS}*; engine.allow_custom_plan=true allows it"


class SharedOut(NamedTuple):
    """How a configuration shares out its GPUs: those that train and those that generate, and the sizes that divide the
    first."""

    train: int
    generation: int
    tensor: int
    context: int
    pipeline: int
    experts: int

    @property
    def model(self) -> int:
        """GPUs that hold one copy of the model."""
        return self.tensor * self.context * self.pipeline

    @property
    def copies(self) -> int:
        """Copies of the model that are trained."""
        return max(1, self.train // self.model)


def shared_out(values: dict[str, Any], nodes: int, each: int) -> SharedOut:
    """How a configuration shares out `nodes` with `each` so many GPUs."""
    policy = values["policy"]
    train = generation = nodes * each
    apart = at(values, "policy.generation.colocated", {"enabled": True})
    if not apart["enabled"]:
        generation_nodes = at(apart, "resources.num_nodes") or 1
        generation = generation_nodes * (at(apart, "resources.gpus_per_node") or each)
        train = nodes * each - generation
    if not at(policy, "megatron_cfg.enabled"):
        tensor, context = (policy["dtensor_cfg"][f"{kind}_parallel_size"] for kind in ("tensor", "context"))
        return SharedOut(train, generation, tensor, context, 1, 1)
    sizes = policy["megatron_cfg"]
    pipeline = sizes["pipeline_model_parallel_size"]
    experts = sizes["expert_model_parallel_size"] * sizes["expert_tensor_parallel_size"] * pipeline
    tensor, context = sizes["tensor_model_parallel_size"], sizes["context_parallel_size"]
    return SharedOut(train, generation, tensor, context, pipeline, experts)


def _layout_problems(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """The parallel sizes must divide the GPUs of their side, and the global batch must be whole micro batches on every
    copy of the model."""
    policy, cluster = values["policy"], values["cluster"]
    found = shared_out(values, cluster["num_nodes"], cluster["gpus_per_node"])
    train, generation = found.train, found.generation
    if train < 1:
        yield (
            f"no GPU is left to train: {engine.num_nodes} nodes x {engine.gpus_per_node} GPUs, of which generation "
            f"takes {generation} (policy.generation.colocated.resources)"
        )
    elif train % found.model:
        yield (
            f"{train} GPUs that train are no multiple of {found.model} (tensor {found.tensor} x context "
            f"{found.context} x pipeline {found.pipeline}): change engine.num_nodes or the sizes"
        )
    else:
        copies, batch, micro = found.copies, policy["train_global_batch_size"], policy["train_micro_batch_size"]
        if batch % (micro * copies):
            yield (
                f"policy.train_global_batch_size {batch} is no multiple of {micro} x {copies} "
                "(train.micro_batch_size x copies of the model)"
            )
    if train >= 1 and train % found.experts:
        yield f"{train} GPUs that train are no multiple of {found.experts} (expert x expert tensor x pipeline)"
    vllm = at(values, "policy.generation.vllm_cfg")
    if at(values, "policy.generation.backend") != "vllm" or not vllm:
        return
    served = vllm["tensor_parallel_size"] * vllm["pipeline_parallel_size"]
    if generation % served:
        sizes_of = "policy.generation.vllm_cfg: tensor x pipeline"
        yield f"{generation} GPUs that generate are no multiple of {served} ({sizes_of})"
    expert = vllm.get("expert_parallel_size", 1)
    if expert > 1 and expert % vllm["tensor_parallel_size"]:
        yield f"policy.generation.vllm_cfg.expert_parallel_size {expert} is no multiple of its tensor_parallel_size"


def _length_problems(values: dict[str, Any], engine: NeMoRLEngine) -> Iterator[str]:
    """Lengths of sequences, and what checkpoints are compared by."""
    whole, new = engine.max_total_sequence_length, at(values, "policy.generation.max_new_tokens", 0)
    if new > whole:  # a completion is part of the sequence
        yield f"grpo.max_new_tokens {new} is more than engine.max_total_sequence_length {whole}"
    divisor = values["policy"]["make_sequence_length_divisible_by"]
    if whole % divisor:  # packed context-parallel sequences are cut into even parts
        name = "policy.make_sequence_length_divisible_by"
        yield f"engine.max_total_sequence_length {whole} is no multiple of {name} {divisor}"
    metric = values["checkpointing"]["metric_name"]
    # a best checkpoint by a validation metric needs a validation before each checkpoint
    if metric is not None and not metric.startswith(("val:", "train:")):
        yield f"checkpointing.metric_name '{metric}' must begin with 'val:' or 'train:'"
    elif str(metric).startswith("val:") and at(values, "grpo.val_period", at(values, "sft.val_period")) <= 0:
        yield f"checkpointing.metric_name '{metric}' needs validation, but there is no validation data"


def _rollout_problems(values: dict[str, Any]) -> Iterator[str]:
    """A step's completions must be whole training batches, and somebody must verify them."""
    grpo, batch = values["grpo"], values["policy"]["train_global_batch_size"]
    completions = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    if completions % batch:
        yield (
            f"{completions} completions per step (grpo.num_prompts_per_step x num_generations_per_prompt) are no "
            f"multiple of policy.train_global_batch_size {batch}"
        )
    elif completions != batch and at(values, "loss_fn.force_on_policy_ratio"):
        yield f"loss_fn.force_on_policy_ratio needs policy.train_global_batch_size {completions}, it is {batch}"
    # without a known verifier NeMo-RL swallows the error and every reward is 0
    verifier = at(values, "env.math.math_verify_impl")
    if at(values, "env.math") is not None and verifier not in VERIFIERS:
        yield f"env.math.math_verify_impl is {verifier!r}: every reward would be 0; give {' or '.join(VERIFIERS)}"


def _gym_problems(values: dict[str, Any]) -> Iterator[str]:
    """NeMo-Gym talks to vLLM over HTTP and takes the validation set as it is."""
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
        yield f"env.nemo_gym.config_paths lacks {TRAINING_SERVER}, the policy's own server"
    compared = at(values, "env.nemo_gym.genrm_compare_resources_server.resources_servers.genrm_compare")
    group = values["grpo"]["num_generations_per_prompt"]
    if compared and compared.get("num_rollouts_per_prompt") != group:
        yield (
            f"genrm_compare compares num_rollouts_per_prompt {compared.get('num_rollouts_per_prompt')} answers, but "
            f"grpo.num_generations_per_prompt is {group}; with too few every answer gets the default score"
        )


def _replay_problems(values: dict[str, Any]) -> Iterator[str]:
    """vLLM tells the experts of each token, and Megatron can be told to take them."""
    name = "policy.router_replay.enabled"
    if not at(values, name):
        return
    if not at(values, "policy.megatron_cfg.enabled"):
        yield f"{name} needs policy.megatron_cfg.enabled: true"
    if at(values, "policy.generation.backend") != "vllm":
        yield f"{name} needs policy.generation.backend: vllm"
