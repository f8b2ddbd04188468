"""Show a resolved config as YAML with the origin of each value, and describe settings from their docstrings."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from nemotron_shared.config.schema import StageConfig


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


def described(section: type[BaseModel], engine: type[BaseModel] | None, above: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and description of every setting."""
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        if issubclass(section, StageConfig) and name == "engine" and engine is not None:
            inner = engine
        optional = type(None) in get_args(field.annotation)
        if inner is None or optional:
            yield f"{above}{name}", docstrings(section)[name]
        if inner is not None:
            yield from described(inner, None, f"{above}{name}.")


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section a field holds, even if it is optional."""
    members = [one for one in (annotation, *get_args(annotation)) if inspect.isclass(one)]
    if any(one in (list, dict) for one in members) or str(annotation).startswith(("list", "dict")):
        return None
    return next((one for one in members if issubclass(one, BaseModel)), None)


@cache
def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Docstrings of a class's fields, including inherited ones.

    Raises:
        ValueError: a field has no docstring.
    """
    found: dict[str, str] = {}
    for base in reversed([one for one in section.__mro__ if issubclass(one, BaseModel) and one is not BaseModel]):
        if base.__module__.startswith("pydantic"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                has_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                text = str(below.value.value) if has_text else None  # type: ignore[union-attr]
                found[field.target.id] = " ".join(text.split()) if text else found.get(field.target.id, "")
    settings = (name for name, field in section.model_fields.items() if section_in(field.annotation) is None)
    if missing := [name for name in settings if not found[name]]:
        raise ValueError(f"{section.__name__}: no docstring below {', '.join(missing)}")
    return found
