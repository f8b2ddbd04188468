"""Judge a resolved configuration by its typed schema, and say what is wrong in the user's own terms.

error: tiny.yaml:14: unknown key 'optimizer.learning_rate'
  did you mean 'optimizer.lr'?
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemotron_shared.errors import UserError, did_you_mean

Schema = TypeVar("Schema", bound=BaseModel)


def validate(schema: type[Schema], values: dict[str, Any], origins: Mapping[str, str]) -> Schema:
    """Build `schema` from `values`.

    Raises:
        UserError: naming the origin (file and line, or command line), the key and the remedy of each fault.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        faults = [_fault(schema, details, origins) for details in error.errors()]
    raise UserError("\n".join(faults[:MOST_FAULTS]) + ("\n…" if len(faults) > MOST_FAULTS else ""))


MOST_FAULTS = 8


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Where a key, or the nearest section above it, was set."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return "config"


def _fault(schema: type[BaseModel], details: ErrorDetails, origins: Mapping[str, str]) -> str:
    key = ".".join(str(part) for part in details["loc"])
    where = origin_of(key, origins)
    if details["type"] == "extra_forbidden":
        parent, _, name = key.rpartition(".")
        remedy = did_you_mean(name, _siblings(schema, parent), f"known here: {', '.join(_siblings(schema, parent))}")
        return f"{where}: unknown key '{key}'\n  {remedy}"
    if details["type"] == "missing":
        return f"{where}: missing key '{key}'\n  set it, or begin the file with 'defaults: [default, _self_]'"
    if isinstance(details["input"], dict) and details["type"] == "value_error":
        return f"{where}: {details['msg'].removeprefix('Value error, ')}"
    message = details["msg"].removeprefix("Value error, ")
    return f"{where}: {key or 'config'}: {message} (got {details['input']!r})" if key else f"{where}: {message}"


def _siblings(schema: type[BaseModel], parent: str) -> list[str]:
    """Field names of the section `parent`, following nested models by name."""
    model: Any = schema
    for part in filter(None, parent.split(".")):
        field = model.model_fields.get(part) if isinstance(model, type) and issubclass(model, BaseModel) else None
        model = field.annotation if field else None
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
