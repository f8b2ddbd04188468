"""Merge `engine.overrides` into Bridge's configuration, strictly.

Bridge skips unknown keys with a warning and accepts values of any type. Here each key must be a field of the
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

from nemotron_engines.megatron_bridge.dialect import KEYS
from nemotron_engines.overrides import Strict
from nemotron_shared.config.translation import owned
from nemotron_shared.config.validate import has_type

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
