"""`engine.overrides`: a free tree of values, checked against the types that the engine's own library declares.

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
    """Whether a value has the declared type: an int is a float, a bool is no int, null only where it is allowed.

    Args:
        hint: an annotation; None where nothing is declared.
        strict: False lets a list be a tuple and a mapping a dataclass, as YAML has neither.

    Returns:
        None where there is no way to tell: nothing is declared, or nothing that pydantic understands.
    """
    if hint is None:
        return None
    # a dataclass brings its own settings, and pydantic refuses others beside them
    config = None if dataclasses.is_dataclass(hint) else ConfigDict(arbitrary_types_allowed=True)
    try:
        TypeAdapter(hint, config=config).validate_python(value, strict=strict)
    except ValidationError:
        return False
    except (PydanticUserError, TypeError):
        return None
    return True


def refusal(key: str, message: str, origins: Mapping[str, str], remedy: str | None = None) -> UserError:
    """The error for one key of the tree, beginning with the place that set it where `origins` are known."""
    # A section that the command line made has no origin; the keys in it have.
    inside = (origin for name, origin in origins.items() if name.startswith(f"{key}."))
    origin = origins.get(key) or next(inside, None) or origin_of(key, origins)
    return UserError(f"{origin}: {key}: {message}" if origins else f"{key}: {message}", remedy)
