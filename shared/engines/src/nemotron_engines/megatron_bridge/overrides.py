"""Merge `engine.overrides` into Bridge's configuration, strictly.

Bridge itself skips unknown keys with a warning and stores values of any type. Here each key must be a field of the
section's dataclass, and each value must have the type that the field declares:

    error: engine.overrides.train.train_iter: TrainingConfig has no field 'train_iter'
      did you mean 'train_iters'?
"""

import dataclasses
import inspect
import sys
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

import torch

from nemotron_shared.config.typed_values import has_type, refusal
from nemotron_shared.errors import UserError, did_you_mean

ROOT = "engine.overrides"
# A field of functions that Bridge writes into YAML by name and reads back.
NAMED_FUNCTIONS = ("activation_func",)
MOST_NAMES = 30  # fields that a message lists
# What our own sections decide: the key to use instead. Two places for one value would contradict each other.
OWNED = {
    "train.train_iters": "train.train_iters",
    "train.global_batch_size": "train.global_batch_size",
    "train.micro_batch_size": "train.micro_batch_size",
    "validation.eval_interval": "train.eval_interval",
    "validation.eval_iters": "train.eval_rows",
    "dataset.seq_length": "train.seq_length (or data_prep.pack_size)",
    "dataset.blend_per_split": "run.data",
    "model.seq_length": "train.seq_length (or data_prep.pack_size)",
    "rng.seed": "run.seed",
    "checkpoint.save_interval": "checkpoint.save_interval",
    "checkpoint.most_recent_k": "checkpoint.most_recent_k",
    "logger.log_interval": "logger.log_interval",
    **{
        f"optimizer.{name}": f"optimizer.{name}"
        for name in ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
    },
    **{
        f"scheduler.{name}": f"scheduler.{name}"
        for name in ("lr_decay_style", "lr_warmup_iters", "lr_wsd_decay_iters")
    },
    **{
        f"model.{name}": f"engine.{name}"
        for name in (
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
            "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
            "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
        )
    },
}  # fmt: skip


def apply_overrides(container: Any, overrides: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
    """Set fields of a ConfigContainer, in place.

    Args:
        overrides: values by section and field; a mapping goes into the section of that name.
        origins: "file:line" by dotted key of the whole configuration, for the error message.

    Raises:
        UserError: an unknown key, a value of another type, a null where none may be, a number instead of a section.
    """
    _merge(container, overrides, ROOT, origins or {})


def _merge(target: Any, values: Mapping[str, Any], path: str, origins: Mapping[str, str]) -> None:
    known = {field.name for field in dataclasses.fields(target) if not field.name.startswith("_")}
    for key, value in values.items():
        where = f"{path}.{key}"
        if key not in known:
            raise _unknown(target, str(key), known, where, origins)
        if own := OWNED.get(where.removeprefix(f"{ROOT}.")):
            raise refusal(where, "one of our own settings decides this", origins, f"set {own}")
        current = getattr(target, key)
        if dataclasses.is_dataclass(current):
            _merge_section(current, value, where, origins)
        elif isinstance(value, Mapping) and (section := _optional_section(type(target), key)):
            setattr(target, key, _new_section(section, value, where, origins))
        elif isinstance(current, dict):
            merged = current | dict(_mapping(value, where, origins))
            setattr(target, key, _converted(target, key, current, merged, where, origins))
        else:
            setattr(target, key, _converted(target, key, current, value, where, origins))


def _unknown(target: Any, key: str, known: set[str], where: str, origins: Mapping[str, str]) -> UserError:
    names = ", ".join(sorted(known)) if len(known) <= MOST_NAMES else f"{len(known)} others"
    message = f"{type(target).__name__} has no field '{key}'"
    return refusal(where, message, origins, did_you_mean(key, known, f"it has: {names}"))


def _merge_section(section: Any, value: Any, where: str, origins: Mapping[str, str]) -> None:
    _merge(section, _mapping(value, where, origins, f"{type(section).__name__} is a section"), where, origins)


def _mapping(value: Any, where: str, origins: Mapping[str, str], what: str = "this is a mapping") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refusal(where, f"{what}, not {value!r}", origins, "give its keys one by one")
    return value


def _optional_section(owner: type, key: str) -> type | None:
    """The dataclass of a section that is off (None) so far, where there is just one and it needs no arguments."""
    members = [one for one in _members(_hints(owner).get(key)) if dataclasses.is_dataclass(one)]
    return members[0] if len(members) == 1 and isinstance(members[0], type) else None


def _new_section(section: type, value: Mapping[str, Any], where: str, origins: Mapping[str, str]) -> Any:
    if inspect.isabstract(section):
        raise refusal(where, "this section is off", origins, "turn it on with its own key of the engine section")
    required = [
        field.name
        for field in dataclasses.fields(section)  # ty: ignore[invalid-argument-type]
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in value]
    if missing:
        raise refusal(where, f"{section.__name__} needs {', '.join(missing)} too", origins)
    made = section(**dict.fromkeys(required))
    _merge(made, value, where, origins)
    return made


def _converted(target: Any, key: str, current: Any, value: Any, where: str, origins: Mapping[str, str]) -> Any:
    """The value as the field holds it; dtypes, enums, paths and named functions may be given as text."""
    hint = _hints(type(target)).get(key)
    if isinstance(value, str):
        value = _from_text(key, current, hint, value, where, origins)
    if value is None and current is None:
        return None
    if fits(hint, value) or (not fits(hint, current) and _like(current, value)):
        return float(value) if type(value) is int and type(current) is float else value
    raise refusal(where, f"{value!r} is not {_describe(hint, current)}", origins)


def _from_text(key: str, current: Any, hint: Any, value: str, where: str, origins: Mapping[str, str]) -> Any:
    kinds = [kind for kind in _members(hint) if isinstance(kind, type)]
    if torch.dtype in kinds or isinstance(current, torch.dtype):
        dtype = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise refusal(where, f"{value!r} is no torch dtype", origins, "such as float32 or bfloat16")
        return dtype
    enums = [kind for kind in kinds if issubclass(kind, Enum)]
    if enums and str not in kinds:
        names = {member.name: member for member in enums[0]}
        if value not in names:
            raise refusal(where, f"no {enums[0].__name__} '{value}'", origins, f"there are: {', '.join(names)}")
        return names[value]
    if key in NAMED_FUNCTIONS:
        from megatron.bridge.utils.activation_map import str_to_callable  # ty: ignore[import-not-found]

        try:
            return str_to_callable(value)
        except ValueError as error:
            raise refusal(where, f"no activation function '{value}'", origins) from error
    return Path(value) if Path in kinds and str not in kinds else value


@cache
def _hints(owner: type) -> dict[str, Any]:
    """Annotations of a dataclass; those that name something its module does not have are left out."""
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
    """Whether a value has the declared type; where that cannot be judged, whether it is of one of the classes named."""
    judged = has_type(hint, value)
    if judged is None:
        return isinstance(value, tuple(one for one in _members(hint) if isinstance(one, type)))
    return judged


def _like(current: Any, value: Any) -> bool:
    """Whether a value is of the kind that the recipe itself put there, where a field's annotation is narrower."""
    if current is None or value is None:
        return False
    if isinstance(current, dict):
        return False
    return type(value) is type(current) or (isinstance(current, float) and type(value) is int)


def _describe(hint: Any, current: Any) -> str:
    if hint is None:
        return f"a {type(current).__name__}"
    names = [one.__name__ if isinstance(one, type) else str(one).removeprefix("typing.") for one in _members(hint)]
    return " or ".join("null" if name == "NoneType" else name for name in names)
