"""Which code a step really loads: the modules it imports, directly or through others, as far as they are ours.

    loaded = modules_of(["stages.sft.train", "stages.sft.engines.transformers"], roots)
    loaded["nemotron_engines.rows.packed"]      # "5e88...", the digest of its syntax tree

Comments, docstrings and formatting are in no digest, and a module that is not reached does not count: the settings of
an engine are reached through the engine, so those of an engine that is not chosen change nothing. Only the standard
library is used here, so that CI can ask without an environment.
"""

import ast
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What only shows or explains; a change there must not make finished work stale.
PRESENTATION = frozenset({
    "nemotron_shared.runtime.arguments", "nemotron_shared.runtime.console", "nemotron_shared.runtime.dry_run",
    "nemotron_shared.runtime.progress", "nemotron_shared.errors", "nemotron_shared.runtime.machine",
    "nemotron_shared.runtime.needs", "nemotron_shared.runtime.preflight", "nemotron_shared.runtime.remedies",
})  # fmt: skip
SETTINGS = "settings"
"""Modules of this name hold an engine's settings. A stage's schema names those of every engine."""


@dataclass(frozen=True)
class Module:
    """What a source file says: the digest of its syntax tree, and the dotted names it imports."""

    digest: str
    imports: tuple[str, ...]


class ModuleReader:
    """Parses each file once; what it found is kept in `cache` until size, times or inode of the file change."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._known: dict[str, list] = {}
        self._read = 0
        if cache is not None:
            try:
                self._known = json.loads(cache.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                self._known = {}  # a cache: what cannot be read is made again

    def read(self, path: Path, package: str) -> Module:
        """The module in a file; `package` is what its relative imports start from."""
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, package]
        known = self._known.get(str(path))
        if known is not None and known[0] == stamp:
            return Module(known[1], tuple(known[2]))
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        imports = tuple(dict.fromkeys(_imports(tree, package)))
        digest = hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest()
        self._known[str(path)] = [stamp, digest, list(imports)]
        self._read += 1
        return Module(digest, imports)

    def save(self) -> None:
        """Keep what was parsed for the next process. Where that cannot be written, the next one parses again."""
        if self._cache is None or not self._read:
            return
        try:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=self._cache.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(self._known, file)
            Path(name).replace(self._cache)
        except OSError:
            return


def modules_of(
    entries: Sequence[str],
    roots: Mapping[str, Path],
    reader: ModuleReader | None = None,
    without: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Digest by name of every module of ours that `entries` load.

    Args:
        roots: the folder of each package that is ours, such as {"nemotron_shared": Path(...)}; others are not followed.
        without: modules that are not followed.
    """
    reader = reader or ModuleReader()
    found: dict[str, str] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        located = _locate(name, roots)
        if located is None or located[0] in found or located[0] in without:
            continue
        name, path = located
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        module = reader.read(path, package)
        found[name] = module.digest
        is_schema = name.rpartition(".")[2] == "schema"
        waiting += [one for one in module.imports if not (is_schema and SETTINGS in one.split("."))]
        waiting += _packages_above(name)
    return dict(sorted(found.items()))


def _locate(name: str, roots: Mapping[str, Path]) -> tuple[str, Path] | None:
    """Name and file of a module of ours. `pkg.mod.function`, as in `from pkg.mod import function`, means `pkg.mod`."""
    root = max((one for one in roots if name == one or name.startswith(f"{one}.")), key=len, default=None)
    if root is None:
        return None
    parts = name[len(root) :].strip(".").split(".") if name != root else []
    for length in (len(parts), len(parts) - 1):
        if length < 0:
            break
        base = roots[root].joinpath(*parts[:length])
        dotted = ".".join([root, *parts[:length]])
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return dotted, path
    return None


def _packages_above(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Every dotted name that a module imports, wherever in it, but for what only type checkers see."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """The tree without strings that stand alone, which are docstrings or comments."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [one for one in body if not _is_text(one)] or [ast.Pass()]
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
