"""Find the code that a step really loads: our own modules that it imports, directly or indirectly.

    loaded = modules_of(["stages.sft.train", "stages.sft.engines.transformers"], roots)
    loaded["nemotron_engines.rows"]      # "5e88...", the digest of its syntax tree

Digests ignore comments, docstrings and formatting, and modules that are not reached do not count: an engine's settings
are reached through the engine, so those of engines not chosen make no difference. Uses only the standard library, so
that CI can call it without an environment.
"""

import ast
import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nemotron_shared.system.file_cache import FileCache

NEVER_COUNTS = (
    "nemotron_shared.step", "nemotron_shared.tracking", "nemotron_shared.machine", "nemotron_shared.system",
    "nemotron_shared.models.importing", "nemotron_shared.models.hub", "nemotron_shared.engine.needs",
    "nemotron_engines.estimate", "stages.rl.sizes",
)  # fmt: skip
"""Packages and modules whose code is not part of a result: how a step is started, checked and recorded, the machine
below it, and how a model was obtained, which counts by its files. They are not followed, either."""
STATEMENTS = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})
"""Fields of a syntax tree that contain statements."""
SETTINGS = "settings"
"""Modules of this name define an engine's settings. A stage's schema imports those of every engine."""


def modules_of(
    entries: Sequence[str],
    roots: Mapping[str, Path],
    cache: FileCache | None = None,
    without: Collection[str] = (),
) -> dict[str, str]:
    """Digest by name of every module of ours that `entries` load.

    Args:
        roots: folder of each of our packages, such as {"nemotron_shared": Path(...)}; other packages are not followed.
        without: modules, and packages with all their modules, not to follow.
    """
    cache = cache or FileCache(None)
    found: dict[str, str] = {}
    waiting, asked = list(entries), set[str]()
    while waiting:
        name = waiting.pop()
        if name in asked:  # names are imported in many places, and each lookup takes four calls to the disk
            continue
        asked.add(name)
        located = _locate(name, roots)
        if located is None or located[0] in found or _is_within(located[0], without):
            continue
        name, path = located
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name], imports = cache.get(path, partial(read_module, package=package), package)
        is_schema = name.rpartition(".")[2] == "schema"
        waiting += [one for one in imports if not (is_schema and SETTINGS in one.split("."))]
        while "." in name:  # the packages above it
            name = name.rpartition(".")[0]
            waiting.append(name)
    return dict(sorted(found.items()))


def _locate(name: str, roots: Mapping[str, Path]) -> tuple[str, Path] | None:
    """Name and file of a module of ours. `pkg.mod.function`, as in `from pkg.mod import function`, means `pkg.mod`."""
    root = max((one for one in roots if name == one or name.startswith(f"{one}.")), key=len, default=None)
    if root is None:
        return None
    for dotted in (name, name.rpartition(".")[0]) if name != root else (name,):
        base = roots[root].joinpath(*dotted.removeprefix(root).split("."))
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return dotted, path
    return None


def _is_within(name: str, packages: Collection[str]) -> bool:
    """Whether a module is one of these, or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def read_module(path: Path, package: str) -> tuple[str, list[str]]:
    """Digest of a module's syntax tree, and every dotted name imported anywhere in it.

    Imports for type checkers only do not count. `package` is the base of relative imports.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    imports: dict[str, None] = {}
    waiting: list[Any] = [(tree, True)]  # statements only: expressions hold neither imports nor docstrings
    while waiting:
        node, runs = waiting.pop()
        if runs and isinstance(node, ast.Import):
            imports |= {alias.name: None for alias in node.names}
        elif runs and isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            imports |= {f"{base}.{alias.name}": None for alias in node.names}
        checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for name in STATEMENTS.intersection(node._fields):
            inner = getattr(node, name)
            if isinstance(inner, list):  # the body of a lambda or a conditional expression is not a list
                waiting += [(one, runs and not (checked and name == "body")) for one in inner]
        body = getattr(node, "body", None)
        if isinstance(body, list):  # strings that stand alone are docstrings or comments
            body[:] = [one for one in body if not _is_text(one)] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), list(imports)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
