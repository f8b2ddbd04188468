"""Build NeMo-RL's config file: its own base, then our translated sections, then the overrides.

    optimizer.lr: 3.0e-6                    policy.megatron_cfg.optimizer.lr: 3.0e-6
    built = build(config, "grpo", places, base_values)
    built["policy"]["train_global_batch_size"]      # 2048

A key that one of our sections sets cannot be repeated in `engine.overrides`, except those in REFINABLE, whose meaning
in NeMo-RL is wider than ours. The base's interpolations are resolved last, so that our values reach everything that
NeMo-RL derives from them.
"""

import operator
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_engines.nemo_rl.settings import NeMoRLEngine, NeMoRLGRPOEngine
from nemotron_engines.nemo_rl.versions import VERSIONS, Version
from nemotron_engines.overrides import Strict, at, has, leaves
from nemotron_shared.config.references import computing_with, plain
from nemotron_shared.config.training import (
    EXPERIMENT,
    MOST_BATCHES,
    GRPOConfig,
    GRPOSection,
    SupervisedConfig,
    TrainingConfig,
)
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run

Flat = dict[str, Any]

REFINABLE = frozenset(
    {
        "policy.train_global_batch_size",
        "policy.max_grad_norm",
        "checkpointing.metric_name",
        "checkpointing.higher_is_better",
        "grpo.val_period",
        "grpo.max_num_epochs",
        "sft.max_num_epochs",
        "policy.tokenizer.chat_template",
    }
)
FOREVER = 10_000_000_000
WARMUP_START = 0.1
"""Share of the learning rate at the first step of a warm-up, as in NeMo-RL's own configs."""
POLICY_SERVER = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
"""NeMo-Gym's server for the trained model, in its wheel."""
VERIFIER = "hf_math_verify"
"""Without this argument, NeMo-RL's math environment gives every answer a reward of 0."""


@dataclass(frozen=True)
class Places:
    """Paths of a run, as text, so that a dry run can show placeholders."""

    model: str
    train: str | None
    valid: str | None
    checkpoints: str
    logs: str
    run_name: str
    environments: tuple[str, ...] = ()
    """Config files of the environments in `engine.servers`."""


def placeholders(
    model: str | None = None, *, train: bool = True, valid: bool = True, environments: Sequence[str] = ()
) -> Places:
    """Placeholders for a check without a run. `train`, `valid`: whether we provide the data."""
    rows = "<train.jsonl>" if train else None, "<val.jsonl>" if valid else None
    configs = tuple(f"<{Path(name).name}.yaml>" for name in environments)
    return Places(model or "<run.model>", *rows, "<checkpoints>", "<logs>", "check", configs)


def run_places(
    run: Run, model: Path, train: Path | None, valid: Path | None, environments: Sequence[str] = ()
) -> Places:
    """Paths of a run, all absolute, because NeMo-RL runs in its checkout."""
    return Places(
        model=str(model.resolve()),
        train=None if train is None else str(train.resolve()),
        valid=None if valid is None else str(valid.resolve()),
        checkpoints=str(run.checkpoints.resolve() / "nemo_rl"),
        logs=str(run.directory.resolve() / "nemo_rl_logs"),
        run_name=run.name,
        environments=tuple(environments),
    )


def grpo_keys(config: GRPOConfig[NeMoRLEngine], places: Places, copies: int, *, megatron: bool) -> Flat:
    """NeMo-RL's keys for the sections of the rl stage; `copies`: trained copies of the model."""
    grpo, train, engine = config.grpo, config.train, config.engine
    assert isinstance(engine, NeMoRLGRPOEngine)
    gym = engine.environment == "nemo_gym"
    validates = places.valid is not None or engine.environment == "base"
    keys: Flat = {
        "grpo.num_prompts_per_step": grpo.num_prompts_per_step,
        "grpo.num_generations_per_prompt": grpo.num_generations_per_prompt,
        "policy.train_global_batch_size": config.rows_per_update,
        "policy.generation.max_new_tokens": grpo.max_new_tokens,
        "policy.generation.temperature": grpo.temperature,
        "policy.generation.top_p": grpo.top_p,
        "loss_fn.reference_policy_kl_penalty": grpo.reference_policy_kl_penalty,
        "loss_fn.ratio_clip_min": grpo.ratio_clip_min,
        "loss_fn.ratio_clip_max": grpo.ratio_clip_max,
        "grpo.use_leave_one_out_baseline": grpo.use_leave_one_out_baseline,
        "grpo.normalize_rewards": grpo.normalize_rewards,
        "grpo.overlong_filtering": grpo.overlong_filtering,
        "grpo.max_num_steps": train.train_iters,
        "grpo.val_period": train.eval_interval if validates else 0,
        "grpo.max_val_samples": None if gym else train.eval_rows,
        "grpo.seed": config.run.seed,
    }
    if (largest := grpo.truncated_importance_sampling_ratio) is not None:
        keys["loss_fn.use_importance_sampling_correction"] = True
        keys["loss_fn.truncated_importance_sampling_ratio"] = largest
        if VERSIONS[engine.version].kinds_of_truncation:
            keys["loss_fn.truncated_importance_sampling_type"] = "tis"
    keys |= _algorithm_keys(grpo, VERSIONS[engine.version])
    if not gym:
        keys["grpo.val_batch_size"] = train.eval_rows
    if engine.environment == "math":
        keys["grpo.max_num_epochs"] = train.train_iters  # the step limit ends the training, even with few rows
    return keys | _data_keys(engine, places) | common_keys(config, places, copies, megatron=megatron)


def _algorithm_keys(grpo: GRPOSection, version: Version) -> Flat:
    """Keys of the loss, the length penalty and dynamic sampling; what is not set stays as `engine.base` has it.

    Raises:
        UserError: the version lacks this loss, or the config asks for weights of an age that is set elsewhere.
    """
    keys: Flat = {}
    losses = ("grpo", "cispo") if version.has_cispo else ("grpo",)
    if (loss := grpo.loss_type) is not None:
        if loss not in losses:
            what = f"grpo.loss_type: NeMo-RL {version.package} has no {loss}"
            raise UserError(what, f"use dapo or {' or '.join(losses)}, or engine=trl")
        keys["loss_fn.token_level_loss"] = loss != "grpo"
        keys |= {"loss_fn.use_cispo": loss == "cispo"} if version.has_cispo else {}
        # the bases of Super take every ratio for 1, on which clipping it would have no effect
        keys["loss_fn.force_on_policy_ratio"] = False
        keys["loss_fn.sequence_level_importance_ratios"] = grpo.sequence_level_importance_ratios
    if grpo.reference_policy_kl_type is not None:
        keys["loss_fn.reference_policy_kl_type"] = grpo.reference_policy_kl_type
    if grpo.max_staleness:
        what = f"grpo.max_staleness={grpo.max_staleness}: engine nemo_rl leaves the age of weights to engine.base"
        raise UserError(what, "set grpo.max_staleness=0")
    if grpo.overlong_buffer_length:
        keys["grpo.reward_shaping.enabled"] = True
        keys["grpo.reward_shaping.overlong_buffer_length"] = grpo.overlong_buffer_length
        keys["grpo.reward_shaping.overlong_buffer_penalty"] = grpo.overlong_buffer_penalty
        keys["grpo.reward_shaping.max_response_length"] = grpo.max_new_tokens
    if grpo.use_dynamic_sampling:
        keys["grpo.use_dynamic_sampling"] = True
        keys["grpo.dynamic_sampling_max_gen_batches"] = grpo.dynamic_sampling_max_gen_batches or MOST_BATCHES
    return keys


def _data_keys(engine: NeMoRLGRPOEngine, places: Places) -> Flat:
    """Keys of the rows and of the rewards; their names differ between versions.

    Raises:
        UserError: the version lacks this environment.
    """
    version = VERSIONS[engine.version]
    if engine.environment not in version.scripts:
        known = ", ".join(name for name in version.scripts if name != "sft")
        what = f"engine.environment: '{engine.environment}' is not available with engine.version {engine.version}"
        raise UserError(what, f"available: {known}")
    if engine.environment == "base":
        return {}
    # all of the section is replaced: it also configures the base's own servers, which are not started then
    servers = {"env.nemo_gym": {"config_paths": [POLICY_SERVER, *places.environments]}} if engine.servers else {}
    if version.data_keys == "flat":
        return servers | {"data.train_jsonl_fpath": places.train, "data.validation_jsonl_fpath": places.valid}
    rows, shared = {}, {}
    if engine.environment == "math":  # question and answer of our rows unchanged, without a prompt file
        rows = {"dataset_name": "ResponseDataset", "input_key": "question", "output_key": "expected_answer"}
        env = {"processor": "math_hf_data_processor", "env_name": "math"}
        shared = {"data.default": env | {"prompt_file": None, "system_prompt_file": None}}
    return (
        servers
        | shared
        | {
            "data.train": rows | {"data_path": places.train},
            "data.validation": rows | {"data_path": places.valid} if places.valid else None,
        }
    )


def sft_keys(config: SupervisedConfig[NeMoRLEngine], places: Places, copies: int, *, megatron: bool) -> Flat:
    """NeMo-RL's keys for the sections of the sft stage."""
    train = config.train
    validates = places.train is None or places.valid is not None
    keys: Flat = {
        "sft.max_num_steps": train.train_iters,
        "sft.val_period": train.eval_interval if validates else 0,
        "sft.val_batches": max(1, train.eval_rows // train.global_batch_size),
        "sft.val_global_batch_size": train.global_batch_size,
        "sft.val_micro_batch_size": config.micro_rows(copies),
        "sft.seed": config.run.seed,
        "policy.train_global_batch_size": train.global_batch_size,
        "policy.tokenizer.chat_template": "default",  # the model's own; NeMo-RL's sft.yaml replaces it
    }
    if places.train is not None:
        keys["sft.max_num_epochs"] = train.train_iters  # the step limit ends the training, even with few rows
        keys["data.train"] = {"dataset_name": "openai_format", "data_path": places.train}
        valid = {"dataset_name": "openai_format", "data_path": places.valid}
        keys["data.validation"] = valid if places.valid else None
    return keys | common_keys(config, places, copies, megatron=megatron)


def common_keys(config: TrainingConfig[NeMoRLEngine], places: Places, copies: int, *, megatron: bool) -> Flat:
    """Keys of both algorithms: model, batch, optimizer, schedule, checkpoints, metrics and machines."""
    engine, logger = config.engine, config.logger
    keys: Flat = {
        "policy.model_name": places.model,
        "policy.tokenizer.name": places.model,
        "policy.train_micro_batch_size": config.micro_rows(copies),
        "policy.max_total_sequence_length": engine.max_total_sequence_length,
        "policy.max_grad_norm": config.optimizer.clip_grad,
        "checkpointing.enabled": True,
        "checkpointing.checkpoint_dir": places.checkpoints,
        "checkpointing.save_period": config.checkpoint.save_interval,
        "checkpointing.keep_top_k": config.checkpoint.most_recent_k,
        "checkpointing.metric_name": None,
        "logger.log_dir": places.logs,
        "logger.tensorboard_enabled": True,
        "logger.wandb_enabled": logger.wandb_project is not None,
        "cluster.num_nodes": engine.num_nodes,
        "cluster.gpus_per_node": engine.gpus_per_node,
    }
    if logger.wandb_project is not None:
        keys |= {"logger.wandb.project": logger.wandb_project}
        keys |= {"logger.wandb.name": logger.wandb_name or places.run_name}
    if logger.wandb_project is not None and logger.wandb_entity is not None:
        keys["logger.wandb.entity"] = logger.wandb_entity
    if logger.mlflow_tracking_uri is not None:
        keys |= {
            "logger.mlflow_enabled": True,
            "logger.mlflow.tracking_uri": logger.mlflow_tracking_uri,
            "logger.mlflow.experiment_name": logger.mlflow_experiment or EXPERIMENT,
            "logger.mlflow.run_name": places.run_name,
        }
    return keys | (megatron_optimizer(config) if megatron else torch_optimizer(config))


def megatron_optimizer(config: TrainingConfig) -> Flat:
    """Optimizer and schedule of the Megatron backend."""
    optimizer, scheduler = config.optimizer, config.schedule
    if scheduler.lr_decay_style == "WSD":
        raise UserError("scheduler.lr_decay_style: NeMo-RL has no WSD", "use constant, linear or cosine")
    above = "policy.megatron_cfg"
    return {
        f"{above}.optimizer.lr": optimizer.lr,
        f"{above}.optimizer.min_lr": min(
            optimizer.min_lr, optimizer.lr
        ),  # Megatron refuses a higher min_lr, even if unused
        f"{above}.optimizer.weight_decay": optimizer.weight_decay,
        f"{above}.optimizer.adam_beta1": optimizer.adam_beta1,
        f"{above}.optimizer.adam_beta2": optimizer.adam_beta2,
        f"{above}.optimizer.adam_eps": optimizer.adam_eps,
        f"{above}.scheduler.lr_decay_style": scheduler.lr_decay_style,
        f"{above}.scheduler.lr_decay_iters": (
            None if scheduler.lr_decay_style == "constant" else config.train.train_iters
        ),
        f"{above}.scheduler.lr_warmup_iters": scheduler.lr_warmup_iters,
    }


def torch_optimizer(config: TrainingConfig) -> Flat:
    """Optimizer and schedule of the DTensor backend, with torch's own classes, and checkpoints with a full model."""
    optimizer, style, warmup = config.optimizer, config.schedule.lr_decay_style, config.schedule.lr_warmup_iters
    steps = config.train.train_iters - warmup
    kwargs: dict[str, float]
    if style == "constant":
        name, kwargs = "ConstantLR", {"factor": 1.0, "total_iters": FOREVER}
    elif style == "cosine":
        name, kwargs = "CosineAnnealingLR", {"T_max": steps, "eta_min": optimizer.min_lr}
    elif style == "linear":
        end = optimizer.min_lr / optimizer.lr
        name, kwargs = "LinearLR", {"start_factor": 1.0, "end_factor": end, "total_iters": steps}
    else:
        raise UserError(f"scheduler.lr_decay_style: NeMo-RL has no {style}", "use constant, linear or cosine")
    schedule: list[dict[str, Any]] = [{"name": f"torch.optim.lr_scheduler.{name}", "kwargs": kwargs}]
    if warmup:
        start = {"start_factor": WARMUP_START, "end_factor": 1.0, "total_iters": warmup}
        schedule.insert(0, {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": start})
    return {
        "checkpointing.model_save_format": "safetensors",
        "checkpointing.save_consolidated": True,
        "policy.optimizer.name": "torch.optim.AdamW",
        "policy.optimizer.kwargs.lr": optimizer.lr,
        "policy.optimizer.kwargs.weight_decay": optimizer.weight_decay,
        "policy.optimizer.kwargs.betas": [optimizer.adam_beta1, optimizer.adam_beta2],
        "policy.optimizer.kwargs.eps": optimizer.adam_eps,
        "policy.scheduler": [*schedule, {"milestones": [warmup] if warmup else []}],
    }


LARGEST = 1e18


def _of_numbers(compute: Callable[[float, float], float]) -> Callable[[Any, Any], float]:
    """Allow numbers only, and bounded results, because text times a number could fill the memory."""

    def checked(a: Any, b: Any) -> float:
        if type(a) not in (int, float) or type(b) not in (int, float):
            raise ValueError(f"needs numbers, not {str(a)[:40]!r} and {str(b)[:40]!r}")
        if max(abs(a), abs(b), abs(found := compute(a, b))) > LARGEST:
            raise ValueError("the result is too large")
        return found

    return checked


RESOLVERS = {"mul": _of_numbers(operator.mul), "div": _of_numbers(operator.truediv), "max": _of_numbers(max)}
"""Arithmetic resolvers of NeMo-RL's configs."""
MEGATRON = "policy.megatron_cfg.enabled"


class SharedOut(NamedTuple):
    """Distribution of the GPUs: those for training, those for generation, and the parallel sizes that divide the
    former."""

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
        """Number of trained copies of the model."""
        return max(1, self.train // self.model)


def shared_out(values: dict[str, Any], nodes: int, each: int) -> SharedOut:
    """How a configuration distributes `nodes` with `each` GPUs."""
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


def build(
    config: TrainingConfig[NeMoRLEngine],
    algorithm: str,
    places: Places,
    base: dict[str, Any],
    *,
    complete: bool = True,
) -> dict[str, Any]:
    """The whole configuration, resolved.

    Args:
        complete: require all environment variables that the base reads; otherwise a missing one becomes `<NAME>`.

    Raises:
        UserError: an override repeats a key of our sections, or a variable is missing.
    """
    engine, overrides = config.engine, config.engine.overrides
    # Megatron trains; otherwise DTensor
    megatron = bool(at(overrides, MEGATRON, at(base, MEGATRON)))
    tree = OmegaConf.create(with_variables(base, complete=complete))
    before = resolved(OmegaConf.merge(tree, overrides))
    copies = shared_out(before, engine.num_nodes, engine.gpus_per_node).copies
    if isinstance(config, GRPOConfig) and algorithm == "grpo":
        ours = grpo_keys(config, places, copies, megatron=megatron)
    else:
        assert isinstance(config, SupervisedConfig) and algorithm == "sft", f"no stage trains {algorithm} like this"
        ours = sft_keys(config, places, copies, megatron=megatron)
    refuse_repeated(overrides, ours)
    refined = {key: value for key, value in ours.items() if not (key in REFINABLE and has(overrides, key))}
    for key, value in refined.items():
        OmegaConf.update(tree, key, value, merge=isinstance(value, dict) and key == "data.default", force_add=True)
    if isinstance(engine, NeMoRLGRPOEngine) and engine.environment == "math":
        tree = OmegaConf.merge(tree, {"env": {"math": {"math_verify_impl": VERIFIER}}})
    return resolved(OmegaConf.merge(tree, overrides))


def resolved(tree: Any) -> dict[str, Any]:
    """Plain values; raises UserError for a broken interpolation."""
    try:
        with computing_with(RESOLVERS):
            content = plain(tree)
    except OmegaConfBaseException as error:
        raise UserError(f"NeMo-RL's config: {error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


def with_variables(base: Any, *, complete: bool) -> Any:
    """The base with its environment variables filled in."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        if name not in os.environ and complete:
            remedy = f"export {name}=... (a folder that all nodes see)"
            raise UserError(f"this recipe needs the environment variable {name}", remedy)
        return os.environ.get(name, f"<{name}>")

    if isinstance(base, dict):
        return {name: with_variables(child, complete=complete) for name, child in base.items()}
    if isinstance(base, list):
        return [with_variables(child, complete=complete) for child in base]
    return re.sub(r"\$\{oc\.env:(\w+)\}", value_of, base) if isinstance(base, str) else base


def refuse_repeated(overrides: dict[str, Any], ours: Flat) -> None:
    """Refuse an override of a value that one of our sections sets."""
    there = "set it there: run, train, grpo, optimizer, scheduler, checkpoint, logger or engine"
    for key, _ in leaves(overrides):
        decided = [own for own in ours if key == own or key.startswith(f"{own}.") or own.startswith(f"{key}.")]
        if not REFINABLE.issuperset(decided):
            Strict({key: there}, {}).require_free(key)
