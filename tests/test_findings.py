"""Checks yield findings, and change nothing that they were given."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

CHANGING = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def sources() -> Iterator[Path]:
    for folder in ("shared", "stages"):
        yield from (path for path in (ROOT / folder).rglob("*.py") if not {"tests", ".venv"} & set(path.parts))


def with_remedy(tree: ast.Module) -> set[str]:
    """Classes with an attribute `remedy`: a field, a property, or one that a method sets."""
    found = set()
    for one in ast.walk(tree):
        if not isinstance(one, ast.ClassDef):
            continue
        names = {
            each.target.id for each in one.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        names |= {each.name for each in one.body if isinstance(each, ast.FunctionDef)}
        names |= {
            each.attr for each in ast.walk(one) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        }
        if "remedy" in names:
            found.add(one.name)
    return found


def written(tree: ast.Module) -> list[str]:
    """Each place where a function that returns findings writes into one of its arguments."""
    found = []
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef) and one.returns is not None and "Finding" in ast.unparse(one.returns):
            given = {each.arg for each in (*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs)}
            found += [f"{one.name}: {ast.unparse(place)}" for place in _changed(one) if _root(place) in given]
    return found


def _changed(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for one in ast.walk(function):
        if isinstance(one, ast.Attribute | ast.Subscript) and isinstance(one.ctx, ast.Store | ast.Del):
            yield one
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in CHANGING:
            yield one.func
        elif isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            yield one.target


def _root(place: ast.expr) -> str | None:
    """The name that an expression such as `start.found["data"]` begins with."""
    while isinstance(place, ast.Attribute | ast.Subscript):
        place = place.value
    return place.id if isinstance(place, ast.Name) else None


def test_a_finding_and_the_error_that_carries_it_alone_have_a_remedy() -> None:
    assert {name for path in sources() for name in with_remedy(ast.parse(path.read_text()))} == {"Finding", "UserError"}


def test_no_check_writes_into_an_object_that_it_was_given() -> None:
    functions = 0
    for path in sources():
        text = path.read_text()
        assert written(ast.parse(text)) == [], path
        functions += text.count("[Finding]:")
    assert functions > 50


@pytest.mark.parametrize(
    "line", ["start.notes += ['x']", "start.found['data'] = 1", "start.notes.append('x')", "del start.found['data']"]
)
def test_what_a_check_may_not_do_is_found(line: str) -> None:
    (place,) = written(ast.parse(f"def check(start) -> Iterator[Finding]:\n    {line}\n    yield note('x')\n"))
    assert place.startswith("check: start.")
