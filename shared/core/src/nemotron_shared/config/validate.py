"""Validate a resolved configuration by its typed schema, with errors in the user's terms.

error: tiny.yaml:14: unknown key 'optimizer.learning_rate'
  did you mean 'optimizer.lr'?

`engine.overrides`, a free-form tree, is checked against the types that the engine's library declares:

    has_type(int | None, "64")     # False
    refusal("engine.overrides.model.hiden", "no such field", task.origins, "did you mean 'hidden_size'?")
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from nemotron_shared.config.overrides import COMMAND_LINE, is_at, leaves, of_the_same_name
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.system.errors import UserError, did_you_mean

Schema = TypeVar("Schema", bound=BaseModel)
MOST_FAULTS = 8
UNKNOWN = "extra_forbidden"
"""Pydantic's error type for an unknown key."""
KEY, PLACE = re.compile(r"[a-z]\w*(?:\.\w+)+"), re.compile(r":\d+( |$)")
"""A dotted key in a message, and the line of a file in an origin."""
NO_SECTION = {"model_type", "model_attributes_type", "dict_type"}
"""Pydantic's error types for a value in place of a section."""


def validate(schema: type[Schema], values: dict[str, Any], origins: Mapping[str, str]) -> Schema:
    """Build `schema` from `values`.

    Args:
        origins: where each key was set; "" stands for all keys, if they come from one file that is not a config.

    Raises:
        UserError: with origin (file and line, or command line), key and remedy of each fault.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        found = sorted(error.errors(), key=lambda one: one["type"] != UNKNOWN)  # a misspelt key explains a missing one
        wrong = {".".join(map(str, one["loc"])) for one in found if one["type"] == UNKNOWN}
        keys = [key for key, _ in leaves(values) if not is_at(key, wrong)]
        faults = [_fault(schema, values, details, origins, keys) for details in found]
    raise UserError("\n".join(faults[:MOST_FAULTS]) + ("\n…" if len(faults) > MOST_FAULTS else ""))


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Where a key, or the nearest section above it, was set."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return origins.get("", "config")


def _origin_of_several(message: str, origins: Mapping[str, str]) -> str | None:
    """Where the first of the keys that a message names was set: the user's words and files before our defaults."""

    def is_default(origin: str) -> bool:
        return origin.startswith("default.yaml:")

    set_in = [origins[key] for key in KEY.findall(message) if key in origins]
    said = [origin for origin in set_in if not PLACE.search(origin)]  # on the command line or in a profile
    return min(said or set_in, key=is_default, default=None)


def _fault(
    schema: type[BaseModel],
    values: Mapping[str, Any],
    details: ErrorDetails,
    origins: Mapping[str, str],
    keys: Sequence[str],
) -> str:
    """Describe one fault; `keys` are the valid keys of the config."""
    names = [str(part) for part in details["loc"]]
    below = details.get("ctx", {}).get("below")  # set by validators of a whole section
    key = ".".join([*names, below] if below else names)
    where = origin_of(key, origins)
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == UNKNOWN:
        known = _beside(schema, values, names)
        near = did_you_mean(names[-1], known, f"known here: {', '.join(known)}")
        elsewhere = of_the_same_name(key, keys)
        remedy = f"did you mean '{elsewhere[0]}'?" if elsewhere else near
        file = where.rpartition(":")[0]
        if elsewhere and file and origins.get(elsewhere[0], "").rpartition(":")[0] == file:
            remedy = f"remove it: {file} sets '{elsewhere[0]}' as well"
        return f"{where}: unknown key '{key}'\n  {remedy}"
    if details["type"] == "missing":
        # only a config's file can start from defaults, and those have no entries of lists
        may_begin = "" not in origins and where != COMMAND_LINE and not any(name.isdigit() for name in names)
        or_begin = ", or begin the file with 'defaults: [default, _self_]'" if may_begin else ""
        return f"{where}: missing key '{key}'\n  set it{or_begin}"
    if details["type"] in NO_SECTION and (known := _beside(schema, values, [*names, ""])):
        keys = ", ".join(f"{name}: ..." for name in known)
        remedy = f"write its keys: {key}={{{keys}}}" + f"; what they mean: nemotron config explain {key}"
        return f"{where}: {key} is a section, and not {details['input']!r}\n  {remedy}"
    if below:
        return f"{where}: {key}: {message}"
    if not key or (isinstance(details["input"], dict) and details["type"] == "value_error"):
        where = _origin_of_several(message, origins) or where
        return f"{where}: {message}"
    return f"{where}: {key}: {message} (got {details['input']!r})"


def _beside(schema: type[BaseModel], values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Keys of the section that the last of `names` belongs to."""
    section: type[BaseModel] | None = schema
    known: list[str] = []
    for place, name in enumerate(names, 1):
        if name.isdigit() and place < len(names):  # an entry of a list of sections
            continue
        fields = {field.alias or key: field for key, field in section.model_fields.items()} if section else {}
        known = sorted(fields)
        if name == "engine" and section is not None and issubclass(section, StageConfig):
            section = section.engine_class(values.get(name))
            continue
        annotation = fields[name].annotation if name in fields else None
        members = (annotation, *get_args(annotation))  # a section, possibly optional
        section = next((one for one in members if isinstance(one, type) and issubclass(one, BaseModel)), None)
    return known


def has_type(hint: Any, value: Any, *, strict: bool = True) -> bool | None:
    """Whether a value has the declared type: an int passes as a float, a bool never as an int, null only if allowed.

    Args:
        hint: an annotation; None if nothing is declared.
        strict: False accepts a list for a tuple and a mapping for a dataclass, as YAML has neither.

    Returns:
        None if it cannot be decided: nothing is declared, or nothing pydantic understands.
    """
    if hint is None:
        return None
    # a dataclass has its own settings, and pydantic accepts no others then
    config = None if dataclasses.is_dataclass(hint) else ConfigDict(arbitrary_types_allowed=True)
    try:
        TypeAdapter(hint, config=config).validate_python(value, strict=strict)
    except ValidationError:
        return False
    except (PydanticUserError, TypeError):
        return None
    return True


def refusal(key: str, message: str, origins: Mapping[str, str], remedy: str | None = None) -> UserError:
    """The error for one key of the tree, starting with its origin if `origins` are known."""
    # A section created on the command line has no origin, but its keys do.
    inside = (origin for name, origin in origins.items() if name.startswith(f"{key}."))
    origin = origins.get(key) or next(inside, None) or origin_of(key, origins)
    return UserError(f"{origin}: {key}: {message}" if origins else f"{key}: {message}", remedy)
