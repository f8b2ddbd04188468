"""Translate our YAML into Megatron-Bridge's ConfigContainer, and merge `engine.overrides` into it strictly.

    install_stubs()                      # without a GPU only: see transformer_engine.py
    container = build_config(task)       # recipe, our sections, engine.overrides, data; then checked by Bridge
    pretrain(container, forward_step)

A later step wins over an earlier one: the recipe's values, then our sections, then `engine.overrides`. A recipe would
read its model's config.json from the hub. It gets a folder instead: the model that the run starts from, or a config
made from `model.architecture` with the vocabulary of the data's tokenizer.

Bridge itself skips unknown keys with a warning and stores values of any type. Here each overridden key must be a field
of the section's dataclass, and its value must have the type that the field declares:

    error: engine.overrides.train.train_iter: TrainingConfig has no field 'train_iter'
      did you mean 'train_iters'?
"""

import copy
import dataclasses
import inspect
import json
import math
import os
import shutil
import sys
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any
from unittest.mock import patch

import torch

from nemotron_data.formats.bin_idx import SPLITS, read_blend
from nemotron_engines.megatron_bridge.dialect import KEYS
from nemotron_engines.megatron_bridge.needs import CHECKPOINT_MARK, unpadded
from nemotron_engines.megatron_bridge.settings import (
    MegatronBridgeEngine,
    MegatronPeft,
    hub_replaced_by,
    packed_dataset,
    recipe_function,
    untried,
)
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_engines.modeling.build import load_tokenizer, nemotron_config
from nemotron_engines.overrides import Strict
from nemotron_engines.stand_ins.megatron_settings import switch_off
from nemotron_shared.config.schema import ModelSection
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from nemotron_shared.config.translation import owned
from nemotron_shared.config.validate import has_type
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from nemotron_shared.system.atomic import link_or_copy, read_json, write_text
from nemotron_shared.system.errors import UserError

# `engine.overrides`, merged into Bridge's configuration.


# A function-valued field that Bridge writes to YAML by name and reads back.
NAMED_FUNCTIONS = ("activation_func",)


def apply_overrides(container: Any, overrides: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
    """Set fields of a ConfigContainer, in place.

    Args:
        overrides: values by section and field; a mapping goes into the section of that name.
        origins: "file:line" by dotted key of the whole configuration, for the error message.

    Raises:
        UserError: an unknown key, a value of the wrong type, a null that is not allowed, a number instead of a section.
    """
    _merge(container, overrides, "", Strict(owned(KEYS), origins or {}))


def _merge(target: Any, values: Mapping[str, Any], path: str, strict: Strict) -> None:
    known = {field.name for field in dataclasses.fields(target) if not field.name.startswith("_")}
    for key, value in values.items():
        where = f"{path}.{key}".lstrip(".")
        strict.require_known(path, str(key), known, type(target).__name__)
        strict.require_free(where)
        current, hint = getattr(target, key), _hints(type(target)).get(key)
        # the dataclass of a section that is still off (None), if there is exactly one
        sections = [one for one in _members(hint) if isinstance(one, type) and dataclasses.is_dataclass(one)]
        if dataclasses.is_dataclass(current):
            below = strict.require_mapping(where, value, f"{type(current).__name__} is a section")
            _merge(current, below, where, strict)
            continue
        if isinstance(value, Mapping) and len(sections) == 1:
            value = _new_section(sections[0], value, where, strict)
        else:
            if isinstance(current, dict):
                value = current | dict(strict.require_mapping(where, value))
            value = _converted(key, hint, current, value, where, strict)
        setattr(target, key, value)


def _new_section(section: type, value: Mapping[str, Any], where: str, strict: Strict) -> Any:
    if inspect.isabstract(section):
        raise strict.refusal(where, "this section is off", "turn it on with its key in the engine section")
    required = [
        field.name
        for field in dataclasses.fields(section)  # ty: ignore[invalid-argument-type]
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in value]
    if missing:
        raise strict.refusal(where, f"{section.__name__} needs {', '.join(missing)} too")
    made = section(**dict.fromkeys(required))
    _merge(made, value, where, strict)
    return made


def _converted(key: str, hint: Any, current: Any, value: Any, where: str, strict: Strict) -> Any:
    """The value converted to the field's type; dtypes, enums, paths and functions may be given as text."""
    if isinstance(value, str):
        value = _from_text(key, current, hint, value, where, strict)
    if value is None and current is None:
        return None
    # If the annotation is narrower than the recipe's own value, also accept that value's type.
    kinds = (float, int) if type(current) is float else (type(current),)
    like = current is not None and not isinstance(current, dict) and type(value) in kinds
    if fits(hint, value) or (like and not fits(hint, current)):
        return float(value) if type(value) is int and type(current) is float else value
    names = [one.__name__ if isinstance(one, type) else str(one).removeprefix("typing.") for one in _members(hint)]
    wanted = " or ".join("null" if name == "NoneType" else name for name in names)
    raise strict.refusal(where, f"{value!r} is not {wanted if hint is not None else f'a {type(current).__name__}'}")


def _from_text(key: str, current: Any, hint: Any, value: str, where: str, strict: Strict) -> Any:
    kinds = [kind for kind in _members(hint) if isinstance(kind, type)]
    if torch.dtype in kinds or isinstance(current, torch.dtype):
        dtype = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise strict.refusal(where, f"{value!r} is not a torch dtype", "use one such as float32 or bfloat16")
        return dtype
    enums = [kind for kind in kinds if issubclass(kind, Enum)]
    if enums and str not in kinds:
        names = {member.name: member for member in enums[0]}
        if value not in names:
            raise strict.refusal(where, f"no {enums[0].__name__} '{value}'", f"there are: {', '.join(names)}")
        return names[value]
    if key in NAMED_FUNCTIONS:
        from megatron.bridge.utils.activation_map import str_to_callable  # ty: ignore[import-not-found]

        try:
            return str_to_callable(value)
        except ValueError as error:
            raise strict.refusal(where, f"no activation function '{value}'") from error
    return Path(value) if Path in kinds and str not in kinds else value


@cache
def _hints(owner: type) -> dict[str, Any]:
    """Annotations of a dataclass, without those that name something missing from its module."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        for name, hint in vars(base).get("__annotations__", {}).items():
            if isinstance(hint, str):
                one = type("One", (), {"__annotations__": {name: hint}})
                try:
                    hint = typing.get_type_hints(one, vars(sys.modules[base.__module__]))[name]
                except NameError:
                    found.pop(name, None)
                    continue
            found[name] = hint
    return found


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the one type."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return tuple(one for member in typing.get_args(hint) for one in _members(member))
    return () if hint is None else (hint,)


def fits(hint: Any, value: Any) -> bool:
    """Whether a value has the declared type; if that cannot be checked, whether its class is named there."""
    known = has_type(hint, value)
    return isinstance(value, tuple(one for one in _members(hint) if isinstance(one, type))) if known is None else known


def build_config(
    task: Task[SupervisedConfig[MegatronBridgeEngine]], *, world_size: int | None = None, gpu: bool | None = None
) -> Any:
    """A ConfigContainer that Bridge's own checks accept.

    Args:
        world_size: processes to check the layout for. None: the running ones.
        gpu: whether there is a GPU; None asks torch. Without one, Transformer Engine's settings are off.

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
    """Whether a config belongs to pretraining, the only stage that cuts rows to its own length."""
    return isinstance(config.train, PretrainTrain)


def model_folder(task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> Path:
    """A folder with the model's config.json: the starting model, or one made from `model.architecture`."""
    base = task.inputs.get("model")
    if base is not None:
        return readable(base.path, task.run.directory / "model")
    tokenizer = task.input("data").path / "tokenizer"
    folder = task.run.directory / "model_config"
    return distributed.on_rank_zero(lambda: write_model_config(task.config.model, tokenizer, folder))


OLDER = {"linear_attention": "mamba", "full_attention": "attention"}
"""Kinds of layers as newer versions of transformers write them, and as all versions read them."""


def readable(folder: Path, into: Path) -> Path:
    """The model's folder; or one of links with names of layers that the transformers of Bridge's environment knows."""
    config = read_json(folder / "config.json")
    kinds = {key: value for key, value in config.items() if key.endswith("layers_block_type")}
    renamed = {key: [OLDER.get(kind, kind) for kind in value] for key, value in kinds.items() if value}
    if all(kinds[key] == value for key, value in renamed.items()):
        return folder

    def make() -> Path:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        for file in filter(Path.is_file, folder.iterdir()):
            link_or_copy(file, into / file.name)
        write_text(into / "config.json", json.dumps(config | renamed, indent=2) + "\n")
        return into

    return distributed.on_rank_zero(make)


def set_layout(container: Any, engine: MegatronBridgeEngine) -> None:
    """Set the parallel layout, the precision and the adapters."""
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
    """Bridge's precision of that name, or float32.

    Raises:
        UserError: unknown precision.
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
    """Set steps, batches, optimizer and learning rate."""
    train, engine = config.train, config.engine
    per_replica = engine.tensor_model_parallel_size * engine.pipeline_model_parallel_size * engine.context_parallel_size
    container.train.train_iters = min(engine.stop_at or train.train_iters, train.train_iters)
    container.train.global_batch_size = train.global_batch_size
    container.train.micro_batch_size = config.micro_rows(world_size // per_replica)
    container.validation.eval_interval = train.eval_interval
    container.validation.eval_iters = math.ceil(train.eval_rows / train.global_batch_size)
    theirs, ours = container.optimizer, config.optimizer
    theirs.lr, theirs.min_lr = ours.lr, min(ours.min_lr, ours.lr)  # Megatron refuses a higher min_lr, even if unused
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
    """Set the paths of checkpoints, metrics and the tokenizer."""
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
    """The starting weights: the Megatron checkpoint in the model's artifact, else the Hugging Face folder, which Bridge
    converts while reading."""
    model = task.input("model")
    kept = model.path / "megatron"
    return kept if (kept / CHECKPOINT_MARK).is_file() else model_folder(task)


def _resume_from(task: Task[SupervisedConfig[MegatronBridgeEngine]], own: Path) -> Path:
    """This run's checkpoints, or, before the first one, those of the run that it continues."""
    if task.config.engine.start_from == "weights" or (own / CHECKPOINT_MARK).is_file():
        return own
    return task.input("model").path / "megatron"


def set_data(container: Any, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> None:
    """Set the stage's data set, and the model's row length to match."""
    data = task.input("data").path
    if is_pretraining(task.config):
        has_valid = set_token_shards(container, data, task)
    else:
        has_valid = set_packed_rows(container, data, task)
    if not has_valid:
        task.run.say("the valid split is empty: no validation")
        container.validation.eval_iters = 0
    container.model.seq_length = container.dataset.seq_length


def check(container: Any, world_size: int) -> Any:
    """Let Bridge resolve and check a copy of the configuration for `world_size` processes; returns the copy.

    Raises:
        UserError: Bridge refuses the configuration; with its message.
    """
    from megatron.bridge.training.config import runtime_config_update  # ty: ignore[import-not-found]

    resolved = copy.deepcopy(container)
    resolved.env_vars = {}  # Bridge would set them in this process
    try:
        with patch.dict(os.environ, {"WORLD_SIZE": str(world_size), "RANK": os.environ.get("RANK", "0")}):
            runtime_config_update(resolved)
    except (AssertionError, ValueError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        remedy = "change the engine section, or engine.overrides"
        raise UserError(f"Megatron-Bridge refuses the configuration: {message}", remedy) from error
    return resolved


# Fields of Bridge's model provider that come from a Hugging Face config. A recipe with its own model description, such
# as Nano's pretraining, gets them from our architecture too, so that `model` means the same with every engine.
DECIDED_BY_ARCHITECTURE = (
    "hybrid_layer_pattern", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim", "mamba_chunk_size",
    "num_moe_experts", "moe_router_topk", "moe_router_topk_scaling_factor", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "moe_latent_size", "mtp_num_layers", "mtp_hybrid_override_pattern",
    "mtp_use_repeated_layer", "vocab_size",
)  # fmt: skip


def base_config(name: str | None, folder: Path, finetune: bool) -> Any:
    """A ConfigContainer of Bridge.

    Args:
        name: recipe below `megatron.bridge.recipes`. None: Bridge's settings for any pretraining or fine-tuning.
        folder: holds the config.json of the model.
        finetune: use Bridge's general settings for fine-tuning, if no recipe is named.

    Raises:
        UserError: unknown recipe.
    """
    if name is None:
        from megatron.bridge.recipes import common  # ty: ignore[import-not-found]

        container = common._sft_common() if finetune else common._pretrain_common()
        container.model = provider_of(folder)
        return container
    with hub_replaced_by(folder) as asked:
        container = recipe_function(name)()
    if not asked:
        described = provider_of(folder)
        for field in DECIDED_BY_ARCHITECTURE:
            setattr(container.model, field, getattr(described, field))
    if not container.model.mtp_hybrid_override_pattern:
        container.model.mtp_num_layers = 0  # a recipe assumes prediction blocks that this model lacks
    return container


def provider_of(folder: Path) -> Any:
    """Bridge's description of the model in a Hugging Face folder; only its config.json is read."""
    from megatron.bridge import AutoBridge  # ty: ignore[import-not-found]

    return AutoBridge.from_hf_pretrained(str(folder)).to_megatron_provider(load_weights=False)


def write_model_config(section: ModelSection, tokenizer: Path, folder: Path) -> Path:
    """Write the config.json of an architecture, with the vocabulary of a tokenizer, into `folder`."""
    config = nemotron_config(load_architecture(section.architecture, section.overrides), load_tokenizer(tokenizer))
    config.architectures = ["NemotronHForCausalLM"]
    config.save_pretrained(folder)
    return folder


def set_token_shards(container: Any, data: Path, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> bool:
    """Configure the pretraining data set from blend.json; returns whether there is a validation split.

    Megatron's index of the shards goes into the run folder, because artifacts are never written to.
    """
    dataset, train = container.dataset, task.config.train
    assert isinstance(train, PretrainTrain), "only pretraining reads token shards"
    dataset.seq_length = train.seq_length
    dataset.blend, dataset.split = None, None
    dataset.blend_per_split = blend_per_split(data / "blend.json")
    dataset.path_to_cache = str(task.run.directory / "megatron_index")
    dataset.random_seed = task.config.run.seed
    return dataset.blend_per_split[1] is not None


def blend_per_split(path: Path) -> list[tuple[list[str], list[float]] | None]:
    """(prefixes, weights) of train, valid and test; None for an empty split.

    Raises:
        UserError: blend.json is damaged, or its train split is empty.
    """
    blend = read_blend(path)
    if not blend.get("train"):
        raise UserError(f"{path}: the train split is empty", "prepare more data, or raise data_prep.split.train")
    pairs = [blend.get(split) for split in SPLITS]
    return [([str(prefix) for _, prefix in one], [weight for weight, _ in one]) if one else None for one in pairs]


def set_packed_rows(container: Any, data: Path, task: Task[SupervisedConfig[MegatronBridgeEngine]]) -> bool:
    """Configure the fine-tuning data set from the packed Parquet files; returns whether there is a validation split.

    Raises:
        UserError: the layout needs sequences padded to a multiple, which the packer does not do.
    """
    config, size = task.config, int(task.input("data").manifest.metadata["pack_size"])
    engine = config.engine
    for problem in unpadded(engine):
        raise UserError(problem.message, problem.remedy)
    parts = engine.tensor_model_parallel_size if engine.sequence_parallel else 1
    if size % parts:
        what = f"a pack of {size} tokens cannot be split over {parts} processes (engine.sequence_parallel)"
        raise UserError(what, f"prepare the data with a data_prep.pack_size that is a multiple of {parts}")
    train, valid = data / "train.parquet", data / "valid.parquet"
    found = valid if valid.is_file() else None
    container.dataset = packed_dataset(
        train,
        found,
        size,
        task.run.directory,
        seed=config.run.seed,
        max_train_samples=container.train.train_iters * config.train.global_batch_size,
        do_test=False,
    )
    return found is not None
