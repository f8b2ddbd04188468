"""Check `engine.overrides`, a free-form tree, against the types the engine's library declares.

    has_type(int | None, "64")     # False
    refusal("engine.overrides.model.hiden", "no such field", task.origins, "did you mean 'hidden_size'?")

error: super3.yaml:14: engine.overrides.model.hiden: no such field
  did you mean 'hidden_size'?
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from nemotron_shared.config.validate import origin_of
from nemotron_shared.errors import UserError


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
