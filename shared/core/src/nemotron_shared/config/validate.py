"""Judge a resolved configuration by its typed schema, and say what is wrong in the user's own terms.

error: tiny.yaml:14: unknown key 'optimizer.learning_rate'
  did you mean 'optimizer.lr'?
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

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
    names, known = _locate(schema, details["loc"])
    below = details.get("ctx", {}).get("below")  # a validator of a whole section names the key it means
    key = ".".join([*names, below] if below else names)
    where = origin_of(key, origins)
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        remedy = did_you_mean(names[-1], known, f"known here: {', '.join(known)}")
        return f"{where}: unknown key '{key}'\n  {remedy}"
    if details["type"] == "missing":
        return f"{where}: missing key '{key}'\n  set it, or begin the file with 'defaults: [default, _self_]'"
    if details["type"] == "union_tag_invalid":
        context = details.get("ctx", {})
        return f"{where}: no {key} named '{context.get('tag')}'; there are: {context.get('expected_tags')}"
    if below:
        return f"{where}: {key}: {message}"
    if not key or (isinstance(details["input"], dict) and details["type"] == "value_error"):
        return f"{where}: {message}"
    return f"{where}: {key}: {message} (got {details['input']!r})"


def _locate(schema: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """The names of a key, and those of the keys beside it. Pydantic puts the choice of a union (of engines) between
    the names; it is none of them."""
    names: list[str] = []
    here: Any = schema
    beside: list[str] = []
    for part in loc:
        choices = _choices(here)
        if part in choices:
            here = choices[part]
            continue
        names.append(str(part))
        fields = here.model_fields if isinstance(here, type) and issubclass(here, BaseModel) else {}
        beside = sorted(fields)
        here = fields[part].annotation if part in fields else None
    return names, beside


def _choices(annotation: Any) -> dict[Any, Any]:
    """The members of a union of sections, by the name that chooses each."""
    members = [member for member in get_args(annotation) if isinstance(member, type) and issubclass(member, BaseModel)]
    return {tag: member for member in members if "name" in member.model_fields
            for tag in get_args(member.model_fields["name"].annotation)}  # fmt: skip
