"""Show a resolved config as YAML, with the origin of each value."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import BaseModel


def as_used(values: Mapping[str, Any], config: BaseModel | None) -> Mapping[str, Any]:
    """Values as the schema converted them: the text "2" as the number 2.

    Args:
        config: the validated config; None if it is invalid.
    """
    return values if config is None else _as_used(values, config.model_dump(by_alias=True, warnings=False))


def _as_used(value: Any, used: Any) -> Any:
    if isinstance(value, Mapping):
        known = used if isinstance(used, Mapping) else {}
        return {name: _as_used(child, known.get(name)) for name, child in value.items()}
    is_reference = isinstance(value, str) and "${" in value
    is_read = isinstance(value, str | int) and isinstance(used, bool | int | float)
    same = type(value) is type(used) or (type(value), type(used)) == (int, float)
    return used if is_read and not is_reference and not same else value


def with_origins(config: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """YAML lines, each leaf with its origin as a comment."""
    for key, depth, value in _walk(config):
        name = key.rpartition(".")[2]
        indent = "  " * depth
        if value is None:
            yield f"{indent}{name}:"
        else:
            yield f"{f'{indent}{name}: {value}':<56}  # {origin_of(key, origins)}"


def _walk(node: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int, str | None]]:
    for name, child in node.items():
        if isinstance(child, Mapping) and child:
            yield f"{prefix}{name}", depth, None
            yield from _walk(child, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", depth, on_one_line(child)


def on_one_line(value: Any) -> str:
    """A value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Origin of a value: the file or argument that set it, or the mapping around it."""
    while key and key not in origins:
        key = key.rpartition(".")[0]
    return origins.get(key, "default")
