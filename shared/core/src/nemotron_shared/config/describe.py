"""Descriptions of settings, taken from the docstrings below the schemas' fields."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from nemotron_shared.config.schema import StageConfig


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
