"""Find private names of other libraries in our sources: `trainer._save_checkpoint`, `from ray._private import ...`.

    python tests/private_names.py        # each name and the files that use it; tests/private_names.yaml has the reasons

A name is private if it begins with an underscore. It is ours if a class of the same member has it, or if it is looked
up in a module of ours.
"""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(r"_[A-Za-z]\w*")
DOCUMENTED = {"_exit", "_getframe", "_asdict", "_fields", "_replace"}
"""Names in Python's documentation: of `os`, `sys`, named tuples and `ast`."""
OURS = ("nemotron", "stages")
LOOKUPS = {"getattr", "hasattr", "setattr", "delattr"}


def used() -> dict[str, set[str]]:
    """Private names of other libraries, and the files that use each."""
    names = defaultdict[str, set[str]](set)
    for file in _files():
        tree = _tree(file)
        modules, own = _modules_of_ours(tree), _own_names(file)
        for name, looked_up_in in _private(tree):
            if name not in own and name not in DOCUMENTED and looked_up_in not in modules:
                names[name].add(file)
    return names


@cache
def _files() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(name for name in listed.stdout.split() if (ROOT / name).is_file())


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def _private(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each private name, and the plain name that it is looked up in, or ""."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith(OURS):
            words = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            words = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.keyword):
            words = [node.arg or ""]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in LOOKUPS:
            words = [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
        elif isinstance(node, ast.Attribute):
            if PRIVATE.fullmatch(node.attr):
                yield node.attr, node.value.id if isinstance(node.value, ast.Name) else ""
            continue
        else:
            continue
        yield from ((word, "") for word in words if PRIVATE.fullmatch(word))


def _modules_of_ours(tree: ast.Module) -> set[str]:
    """Names under which a file imports our modules, or what they hold."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OURS):
            names |= {alias.asname or alias.name for alias in node.names if alias.name[0].islower()}
    return names


def _own_names(file: str) -> frozenset[str]:
    """Private names of ours that a file may use: those of its member's classes, and in a test all."""
    if is_test(file):
        return _names_of("all")
    member = _member(file)
    return _names_of(member) | (_names_of("shared/engines") if member.startswith("stages/") else frozenset())


@cache
def _names_of(member: str) -> frozenset[str]:
    files = [name for name in _files() if member == "all" or (_member(name) == member and not is_test(name))]
    names = [_names_of_classes(name) | (_functions(name) if member == "all" else set()) for name in files]
    return frozenset().union(*names)


def _member(file: str) -> str:
    """`shared/core` of `shared/core/src/nemotron_shared/stages.py`."""
    return "/".join(file.split("/")[: 2 if file.startswith(("shared/", "stages/")) else 1])


def is_test(file: str) -> bool:
    return file.startswith("tests/") or "/tests/" in file


def _functions(file: str) -> set[str]:
    names = set()
    for node in _tree(file).body:
        names |= {node.name} if isinstance(node, ast.FunctionDef) else set()
        names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return names


@cache
def _names_of_classes(file: str) -> frozenset[str]:
    """Attributes and methods that the classes of a file define, without methods that extend an inherited one."""
    names = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef) and not _extends(line):
                    names.add(line.name)
                elif isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
                    targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                    names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return frozenset(names)


def _extends(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method calls the inherited one of its name."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == method.name
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "super"
        for node in ast.walk(method)
    )


if __name__ == "__main__":
    for name, files in sorted(used().items()):
        print(f"{name}: {', '.join(sorted(files))}")
