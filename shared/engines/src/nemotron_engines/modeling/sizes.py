"""What a model's config.json speaks of, against what its weights hold, before memory and time are taken for it."""

import re
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedConfig

from nemotron_engines.modeling.facts import parameters_in
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.folder import all_in

ANOTHER_MODEL = "download or make the model again, or give another one: run.model=NAME or run.model=./FOLDER"
NOT_THE_FILE = (UserError, MemoryError, torch.OutOfMemoryError)
"""Errors that say what is wrong themselves, or that no file is to blame for."""
MOST_OF_ONE = 16
"""Parameters that one stored value may stand for: quantized ones are packed, eight to a number."""
MOST_LABELS = 100_000
"""The library makes a name for each, and copies them all many times."""
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
ALWAYS_FITS = 2**30
"""Bytes of buffers that need no weights beside them: a tiny model may have the masks of a long context."""
LARGE = 2**20
"""Values of a tensor that is not made to count it."""
MOST_LAYERS = 10_000
"""Many times those of any model, and few enough for the library to read such a config in a moment."""
COUNTS = re.compile(r".*(?<!per_)(layers?|depths?|blocks?)")
"""Keys of numbers of layers, in the spelling of any model type."""
KINDS = re.compile(r".*(layer_types?|block_types?|pattern)")
"""Keys of texts and lists with an entry for each layer."""


class _NothingLarge(TorchDispatchMode):
    """Large tensors are made without memory, also where the code of a model asks for them on the CPU."""

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
        # every model has the eager attention, and what a config asks for may not be installed
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation="eager")


def count_parameters(config: PreTrainedConfig) -> int:
    """Parameters of a model, counted without allocating them."""
    return _without_memory(config).num_parameters()


def first_line(error: BaseException) -> str:
    """What an error of a library says, with what its first line announces, or its kind where it says nothing."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join([first, *others[:1]]) if first.endswith(":") else first


def no_model(path: Path, error: Exception) -> UserError:
    """What to say of a config that the library made, and can make no model of."""
    remedy = "install what it names, or give another model" if isinstance(error, ImportError) else ANOTHER_MODEL
    what = f"no model can be made of it: {type(error).__name__}: {first_line(error)}"
    return UserError(f"{path / 'config.json'}: {what}", remedy)


def _counted(path: Path, config: PreTrainedConfig) -> tuple[int, int]:
    """Parameters, and bytes of buffers, which no file holds and loading makes: masks and tables of positions."""
    try:
        model = _without_memory(config)
        return model.num_parameters(), sum(buffer.nbytes for buffer in model.buffers())
    except NOT_THE_FILE:
        raise
    except Exception as error:  # division by 0, sizes that no number holds, a library that is not there, ...
        raise no_model(path, error) from error


def layers_in(config: dict[str, Any]) -> int:
    """The largest number of layers that a config speaks of, in any of its parts."""
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
    """The layers that the library makes of a config, or of the largest of its parts."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    counts = [getattr(part, "num_hidden_layers", None) for part in parts]
    return max((count for count in counts if isinstance(count, int)), default=0)


def require_few_layers(path: Path, config: dict[str, Any]) -> None:
    """Refuse what no model is, before the library makes a config of it, with a value or more for each layer.

    Raises:
        UserError: naming the file.
    """
    if (layers := layers_in(config)) > MOST_LAYERS:
        what = f"speaks of {layers:,} layers, and {MOST_LAYERS:,} are the most"
        raise UserError(f"{path / 'config.json'}: {what}", ANOTHER_MODEL)


def require_counts(path: Path, config: dict[str, Any]) -> None:
    """Refuse numbers that the library takes into a model, and computes nothing or fails with.

    Raises:
        UserError: naming the file and the key.
    """
    for part in (value for value in all_in(config) if isinstance(value, dict)):
        experts = next((part[key] for key in EXPERTS if type(part.get(key)) is int and part[key] > 1), None)
        most = {"chunk_size": None, "mamba_chunk_size": None}
        if type(labels := part.get("num_labels")) is int and labels > MOST_LABELS:
            what = f"speaks of {labels:,} labels, and {MOST_LABELS:,} are the most"
            raise UserError(f"{path / 'config.json'}: {what}", ANOTHER_MODEL)
        if experts:
            most |= {"n_group": experts, "topk_group": part.get("n_group"), "num_experts_per_tok": experts}
        for key, largest in most.items():
            value, up_to = part.get(key), type(largest) is int
            if type(value) is int and (value < 1 or (up_to and value > largest)):
                allowed = f"from 1 to {largest:,}" if up_to else "of 1 or more"
                raise UserError(f"{path / 'config.json'}: {key} is {value:,}, no number {allowed}", ANOTHER_MODEL)
        if experts and type(part.get("n_group")) is int and experts % part["n_group"]:
            what = f"n_group is {part['n_group']}, and {experts} experts cannot be divided by it"
            raise UserError(f"{path / 'config.json'}: {what}", ANOTHER_MODEL)


def require_sizes(path: Path, config: PreTrainedConfig, *, count: bool) -> None:
    """Refuse a config that speaks of far more than its weights hold.

    Args:
        count: make the model without memory, to count its parameters.

    Raises:
        UserError: naming the file.
    """
    stored = parameters_in(path)
    if stored is None:
        return
    said, layers = "", _layers_of(config)
    if layers > stored.tensors:
        said = f"{layers:,} layers, and its weights are {stored.tensors:,} tensors"
    elif count:
        parameters, buffers = _counted(path, config)
        if parameters > MOST_OF_ONE * stored.total:
            said = f"{parameters:,} parameters, and its weights have {stored.total:,}"
        elif buffers > max(ALWAYS_FITS, MOST_OF_ONE * stored.total):
            said = f"{buffers:,} bytes of masks or tables, and its weights have {stored.total:,} parameters"
    if said:
        raise UserError(f"{path / 'config.json'}: speaks of {said}", ANOTHER_MODEL)
