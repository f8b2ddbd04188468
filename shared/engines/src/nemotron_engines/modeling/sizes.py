"""Compare a model's config.json with its weights, before spending memory and time on it."""

import re
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedConfig

from nemotron_engines.modeling.architecture import parameters_in
from nemotron_shared.models.folder import all_in
from nemotron_shared.system.errors import UserError

ANOTHER_MODEL = "download or make the model again, or use another one: run.model=NAME or run.model=./FOLDER"
NOT_THE_FILE = (UserError, MemoryError, torch.OutOfMemoryError)
"""Errors that explain themselves, or that are not a file's fault."""
MOST_OF_ONE = 16
"""Parameters per stored value: quantized ones are packed, eight to a number."""
MOST_LABELS = 100_000
"""Limit on labels: the library makes a name for each, and copies them many times."""
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
ALWAYS_FITS = 2**30
"""Buffer bytes allowed regardless of weights: a tiny model may have masks for a long context."""
LARGE = 2**20
"""Tensors larger than this are not allocated while counting."""
MOST_LAYERS = 10_000
"""Limit on layers: many times those of any model, yet few enough for the library to read the config quickly."""
COUNTS = re.compile(r".*(?<!per_)(layers?|depths?|blocks?)")
"""Keys for the number of layers, in all model types' spellings."""
KINDS = re.compile(r".*(layer_types?|block_types?|pattern)")
"""Keys of strings and lists with one entry per layer."""


class _NothingLarge(TorchDispatchMode):
    """Creates large tensors without memory, even if a model's code wants them on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(arg, torch.Tensor) for arg in args) and _has_device(func):
            counted = func(*args, **kwargs | {"device": torch.device("meta")})
            if counted.numel() > LARGE:
                return counted
        return func(*args, **kwargs)


def _has_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _without_memory(config: PreTrainedConfig) -> Any:
    with torch.device("meta"), _NothingLarge():
        # every model has eager attention; the configured one may not be installed
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation="eager")


def count_parameters(config: PreTrainedConfig) -> int:
    """Parameters of a model, counted without allocating them."""
    return _without_memory(config).num_parameters()


def first_line(error: BaseException) -> str:
    """First line of a library's error, with the next one if it ends in a colon; its type if it has no text."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join([first, *others[:1]]) if first.endswith(":") else first


def no_model(path: Path, error: Exception) -> UserError:
    """The error for a config that loads but does not give a model."""
    remedy = "install what it names, or use another model" if isinstance(error, ImportError) else ANOTHER_MODEL
    what = f"cannot build a model from it: {type(error).__name__}: {first_line(error)}"
    return UserError(f"{path / 'config.json'}: {what}", remedy)


def _counted(path: Path, config: PreTrainedConfig) -> tuple[int, int]:
    """Parameter count, and bytes of buffers made while loading, such as masks and position tables."""
    try:
        model = _without_memory(config)
        return model.num_parameters(), sum(buffer.nbytes for buffer in model.buffers())
    except NOT_THE_FILE:
        raise
    except Exception as error:  # division by 0, overflowing sizes, a missing library, ...
        raise no_model(path, error) from error


def layers_in(config: dict[str, Any]) -> int:
    """The largest number of layers in a config or any of its parts."""
    largest = 0
    for part in (value for value in all_in(config) if isinstance(value, dict)):
        for key, value in part.items():
            if KINDS.fullmatch(key) and isinstance(value, str | list):
                largest = max(largest, len(value))
            elif COUNTS.fullmatch(key):
                numbers = value if isinstance(value, list) else [value]
                largest = max([largest, *(number for number in numbers if isinstance(number, int))])
    return largest


def _layers_of(config: PreTrainedConfig) -> int:
    """The layers that the library builds from a config, or from its largest part."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    counts = [getattr(part, "num_hidden_layers", None) for part in parts]
    return max((count for count in counts if isinstance(count, int)), default=0)


def require_few_layers(path: Path, config: dict[str, Any]) -> None:
    """Refuse an absurd number of layers before the library builds a config with values for each.

    Raises:
        UserError: too many layers; the message names the file.
    """
    if (layers := layers_in(config)) > MOST_LAYERS:
        what = f"declares {layers:,} layers; at most {MOST_LAYERS:,} are supported"
        raise UserError(f"{path / 'config.json'}: {what}", ANOTHER_MODEL)


def require_counts(path: Path, config: dict[str, Any]) -> None:
    """Refuse numbers that the library accepts, but that give a useless model or fail later.

    Raises:
        UserError: a bad number; the message gives file and key.
    """
    for part in (value for value in all_in(config) if isinstance(value, dict)):
        experts = next((part[key] for key in EXPERTS if type(part.get(key)) is int and part[key] > 1), None)
        most = {"chunk_size": None, "mamba_chunk_size": None}
        if type(labels := part.get("num_labels")) is int and labels > MOST_LABELS:
            what = f"declares {labels:,} labels; at most {MOST_LABELS:,} are supported"
            raise UserError(f"{path / 'config.json'}: {what}", ANOTHER_MODEL)
        if experts:
            most |= {"n_group": experts, "topk_group": part.get("n_group"), "num_experts_per_tok": experts}
        for key, largest in most.items():
            value, up_to = part.get(key), type(largest) is int
            if type(value) is int and (value < 1 or (up_to and value > largest)):
                allowed = f"from 1 to {largest:,}" if up_to else "of 1 or more"
                raise UserError(f"{path / 'config.json'}: {key} is {value:,}, not a number {allowed}", ANOTHER_MODEL)
        if experts and type(part.get("n_group")) is int and experts % part["n_group"]:
            what = f"n_group is {part['n_group']}, which does not divide {experts} experts"
            raise UserError(f"{path / 'config.json'}: {what}", ANOTHER_MODEL)


def require_sizes(path: Path, config: PreTrainedConfig, *, count: bool) -> None:
    """Refuse a config that declares far more than its weights contain.

    Args:
        count: build the model without memory, to count its parameters.

    Raises:
        UserError: the config declares too much; the message names the file.
    """
    stored = parameters_in(path)
    if stored is None:
        return
    said, layers = "", _layers_of(config)
    if layers > stored.tensors:
        said = f"{layers:,} layers, but its weights are {stored.tensors:,} tensors"
    elif count:
        parameters, buffers = _counted(path, config)
        if parameters > MOST_OF_ONE * stored.total:
            said = f"{parameters:,} parameters, but its weights have {stored.total:,}"
        elif buffers > max(ALWAYS_FITS, MOST_OF_ONE * stored.total):
            said = f"{buffers:,} bytes of masks or tables, but its weights have {stored.total:,} parameters"
    if said:
        raise UserError(f"{path / 'config.json'}: declares {said}", ANOTHER_MODEL)


def require_window(path: Path, config: PreTrainedConfig) -> None:
    """Refuse a window of attention in which no token sees any, not even itself.

    transformers 5.23 takes 0 for a window, not for none: it ends with an error about sizes, or computes without any
    attention, by the implementation and the kind of rows.

    Raises:
        UserError: `sliding_window` is less than 1, and a layer goes by it.
    """
    text = config.get_text_config()
    window, kinds = (getattr(text, name, None) for name in ("sliding_window", "layer_types"))
    if isinstance(window, int) and window < 1 and (kinds is None or "sliding_attention" in kinds):
        what = f"{path / 'config.json'}: sliding_window is {window}, in which no token sees any"
        raise UserError(what, "write null for attention to all tokens, or how many a token sees")
