"""From our YAML to the ConfigContainer of Megatron-Bridge.

    install_stubs()                      # without a GPU only: see stubs.py
    container = build_config(task)       # recipe, our sections, engine.overrides, data; then checked by Bridge
    pretrain(container, forward_step)

A later step wins over an earlier one: the recipe's values, then our sections, then `engine.overrides`.
"""

import math
from pathlib import Path
from typing import Any

from nemotron_engines.megatron_bridge.check import check
from nemotron_engines.megatron_bridge.datasets import set_packed_rows, set_token_shards
from nemotron_engines.megatron_bridge.needs import CHECKPOINT_MARK
from nemotron_engines.megatron_bridge.overrides import apply_overrides
from nemotron_engines.megatron_bridge.recipe import base_config, write_model_config
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine, MegatronPeft
from nemotron_engines.megatron_bridge.versions import untried
from nemotron_engines.stand_ins.te_only import switch_off
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.spec import Task


def build_config(
    task: Task[SupervisedConfig[MegatronBridgeEngine]], *, world_size: int | None = None, gpu: bool | None = None
) -> Any:
    """A ConfigContainer that Bridge's own checks accept.

    Args:
        world_size: processes to check the layout for. None: those that run.
        gpu: whether there is one; None asks torch. Without, the settings that Transformer Engine needs are off.

    Raises:
        UserError: a wrong key or type in `engine.overrides`, a recipe that does not exist, or what Bridge refuses.
    """
    import torch

    if line := untried():
        task.run.say(line)
    config = task.config
    container = base_config(config.engine.recipe, model_folder(task), finetune=not is_pretraining(config))
    world_size = world_size or distributed.world_size()
    set_layout(container, config.engine)
    set_training(container, config, world_size)
    set_places(container, task)
    set_data(container, task)
    apply_overrides(container, config.engine.overrides, task.origins)
    if not (torch.cuda.is_available() if gpu is None else gpu):
        off = switch_off(container)
        task.run.say(f"no GPU: {len(off)} settings of Transformer Engine and CUDA are off ({', '.join(off)})")
    check(container, world_size)
    return container


def is_pretraining(config: SupervisedConfig[MegatronBridgeEngine]) -> bool:
    """Whether a config is of the pretraining stage, which alone cuts rows of a length of its own."""
    return isinstance(config.train, PretrainTrain)


def model_folder(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Path:
    """A folder with the config.json of the model: the one to start from, or one made from `model.architecture`."""
    base = task.inputs.get("model")
    if base is not None:
        return base.path
    tokenizer = task.input("data").path / "tokenizer"
    folder = task.run.directory / "model_config"
    return distributed.on_rank_zero(lambda: write_model_config(task.config.model, tokenizer, folder))


def set_layout(container: Any, engine: MegatronBridgeEngine) -> None:
    """How the model is split over processes, its precision, its adapters."""
    model = container.model
    model.tensor_model_parallel_size = engine.tensor_model_parallel_size
    model.pipeline_model_parallel_size = engine.pipeline_model_parallel_size
    model.context_parallel_size = engine.context_parallel_size
    model.expert_model_parallel_size = engine.expert_model_parallel_size
    model.expert_tensor_parallel_size = engine.expert_tensor_parallel_size
    model.sequence_parallel = engine.sequence_parallel
    model.moe_token_dispatcher_type = engine.moe_token_dispatcher_type
    model.moe_flex_dispatcher_backend = engine.moe_flex_dispatcher_backend
    container.mixed_precision = precision(engine.mixed_precision)
    container.model.pipeline_dtype = container.mixed_precision.params_dtype
    container.peft = adapters(engine.peft)


def precision(name: str | None) -> Any:
    """Bridge's precision of that name, or float32 throughout.

    Raises:
        UserError: there is no such precision.
    """
    import torch
    from megatron.bridge.training.mixed_precision import (  # ty: ignore[import-not-found]
        MIXED_PRECISION_RECIPES,
        MixedPrecisionConfig,
        get_mixed_precision_config,
    )

    if name is None:
        return MixedPrecisionConfig(fp32=True, params_dtype=torch.float32, pipeline_dtype=torch.float32)
    if name not in MIXED_PRECISION_RECIPES:
        known = sorted(MIXED_PRECISION_RECIPES)
        raise UserError(f"engine.mixed_precision: Bridge has no '{name}'", f"there are: {', '.join(known)}")
    return get_mixed_precision_config(name)


def adapters(section: MegatronPeft) -> Any:
    """Bridge's LoRA or DoRA, or None."""
    if section.scheme is None:
        return None
    from megatron.bridge.recipes.utils.dataset_utils import default_peft_config  # ty: ignore[import-not-found]

    return default_peft_config(
        section.scheme,
        target_modules=list(section.target_modules),
        dim=section.dim,
        alpha=section.alpha,
        dropout=section.dropout,
    )


def set_training(container: Any, config: SupervisedConfig[MegatronBridgeEngine], world_size: int) -> None:
    """Steps, batches, optimizer and learning rate."""
    train, engine = config.train, config.engine
    per_replica = engine.tensor_model_parallel_size * engine.pipeline_model_parallel_size * engine.context_parallel_size
    container.train.train_iters = min(engine.stop_at or train.train_iters, train.train_iters)
    container.train.global_batch_size = train.global_batch_size
    container.train.micro_batch_size = config.micro_rows(world_size // per_replica)
    container.validation.eval_interval = train.eval_interval
    container.validation.eval_iters = math.ceil(train.eval_rows / train.global_batch_size)
    theirs, ours = container.optimizer, config.optimizer
    theirs.lr, theirs.min_lr = ours.lr, min(ours.min_lr, ours.lr)  # above it, Megatron takes none, needed or not
    theirs.weight_decay, theirs.clip_grad = ours.weight_decay, ours.clip_grad
    theirs.adam_beta1, theirs.adam_beta2, theirs.adam_eps = ours.adam_beta1, ours.adam_beta2, ours.adam_eps
    theirs, schedule = container.scheduler, config.schedule
    theirs.lr_decay_style, theirs.lr_warmup_iters = schedule.lr_decay_style, schedule.lr_warmup_iters
    theirs.lr_decay_iters = train.train_iters
    if schedule.lr_decay_style == "WSD":
        theirs.lr_wsd_decay_style, theirs.lr_wsd_decay_iters = "minus_sqrt", schedule.lr_wsd_decay_iters
    theirs.start_weight_decay = theirs.end_weight_decay = ours.weight_decay
    container.rng.seed = config.run.seed


def set_places(container: Any, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> None:
    """Where checkpoints, metrics and the tokenizer lie."""
    config, run = task.config, task.run
    own = run.checkpoints / "megatron"
    checkpoint, logger = container.checkpoint, container.logger
    checkpoint.save = str(own)
    checkpoint.load = str(_resume_from(task, own))
    checkpoint.save_interval = config.checkpoint.save_interval
    checkpoint.most_recent_k = config.checkpoint.most_recent_k
    if task.inputs.get("model") is not None and config.engine.start_from == "weights":
        checkpoint.pretrained_checkpoint = str(weights_folder(task))
    logger.log_interval = config.logger.log_interval
    logger.tensorboard_dir = str(run.directory / "tensorboard") if config.logger.tensorboard else None
    logger.wandb_project = config.logger.wandb_project
    logger.wandb_entity = config.logger.wandb_entity
    logger.wandb_exp_name = config.logger.wandb_name or run.name
    container.tokenizer.tokenizer_type = "HuggingFaceTokenizer"
    container.tokenizer.tokenizer_model = str(task.input("data").path / "tokenizer")


def weights_folder(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Path:
    """The weights to start from: the Megatron checkpoint in the model's artifact, else the Hugging Face folder itself,
    which Bridge converts while it reads."""
    model = task.input("model")
    kept = model.path / "megatron"
    return kept if (kept / CHECKPOINT_MARK).is_file() else model.path


def _resume_from(task: Task[SupervisedConfig[MegatronBridgeEngine]], own: Path) -> Path:
    """This run's checkpoints; before there is one, those of the run whose state it takes over."""
    if task.config.engine.start_from == "weights" or (own / CHECKPOINT_MARK).is_file():
        return own
    return task.input("model").path / "megatron"


def set_data(container: Any, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> None:
    """The data set of the stage; the model reads rows of the same length."""
    data = task.input("data").path
    if is_pretraining(task.config):
        has_valid = set_token_shards(container, data, task)
    else:
        has_valid = set_packed_rows(container, data, task)
    if not has_valid:
        task.run.say("the valid split is empty: no validation")
        container.validation.eval_iters = 0
    container.model.seq_length = container.dataset.seq_length
