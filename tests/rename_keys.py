"""Does the type checker alone find every reader of a setting? Rename settings in a copy of the tree, and ask it.

    uv run python tests/rename_keys.py                          # all of them, in two runs of the type checker
    uv run python tests/rename_keys.py eval_interval lr peft    # these, one run each

A key is renamed where the schema declares it, and nowhere else. Sections are renamed in a run of their own, for what
cannot be found in a section that is not there would hide its keys. A key that Python reads only through a dump or
as text, as another program's config is made of some, is listed as "not read by name".
"""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")
COPIED = ("pyproject.toml", "shared", "stages")
RENAMED = "_renamed_key"


@dataclass(frozen=True)
class Key:
    """A setting by name: the files and lines that declare it, and whether it is a section."""

    name: str
    declared: frozenset[tuple[Path, int]]
    is_section: bool


def keys() -> dict[str, Key]:
    """Every key of the four stages and of all their engines, by name."""
    found: dict[str, tuple[set[tuple[Path, int]], bool]] = {}
    for section in dict.fromkeys(one for stage in STAGES for one in sections(stage)):
        file = Path(str(sys.modules[section.__module__].__file__))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or node.name != section.__name__.partition("[")[0]:
                continue
            for field in node.body:
                name = (
                    field.target.id if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) else ""
                )
                if name in section.model_fields:
                    places, is_section = found.get(name, (set(), False))
                    inner = any(True for _ in inside(section.model_fields[name].annotation)) or name == "engine"
                    found[name] = places | {(file.relative_to(ROOT), field.lineno)}, is_section or inner
    return {name: Key(name, frozenset(places), inner) for name, (places, inner) in sorted(found.items())}


def sections(stage: str) -> Iterator[type[BaseModel]]:
    """The classes of a stage's schema, of its engines' sections, and those that they derive from."""
    step = importlib.import_module(f"stages.{stage}.train").STEP
    waiting: list[type[BaseModel]] = [step.schema, *(step.engines.load(name).settings for name in step.engines.own)]
    seen = set()
    while waiting:
        section = waiting.pop()
        if section in seen:
            continue
        seen.add(section)
        yield section
        waiting += [base for base in section.__mro__ if issubclass(base, BaseModel) and "nemotron" in base.__module__]
        waiting += [inner for field in section.model_fields.values() for inner in inside(field.annotation)]


def inside(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one


def errors(renamed: Iterable[Key]) -> list[str]:
    """What the type checker says about a copy of the tree in which some keys have another name."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__", "tests", "*.json")
            shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy)
        for key in renamed:
            for file, line in key.declared:
                lines = (copy / file).read_text(encoding="utf-8").split("\n")
                lines[line - 1] = re.sub(rf"^(\s+){key.name}\b", rf"\1{key.name}{RENAMED}", lines[line - 1])
                (copy / file).write_text("\n".join(lines), encoding="utf-8")
        command = ["ty", "check", "--output-format", "concise", "--python", sys.prefix]
        # the copy's own packages, not the installed ones of this tree
        found = [f"--extra-search-path={path}" for path in (copy, *copy.glob("shared/*/src"))]
        done = subprocess.run([*command, *found], cwd=copy, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "error[" in line]


def readers(name: str, said: Iterable[str]) -> list[str]:
    """The errors that are about a key."""
    return [line for line in said if re.search(rf"`{name}`", line)]


def main(names: list[str]) -> int:
    """Print, for each key, how many places the type checker names."""
    known = keys()
    found: dict[str, int] = {}
    for name in names:
        found[name] = len(errors([known[name]]))
    if not names:
        for is_section in (False, True):
            chosen = [key for key in known.values() if key.is_section == is_section]
            said = errors(chosen)
            found |= {key.name: len(readers(key.name, said)) for key in chosen}
    for name, count in sorted(found.items()):
        print(f"{name:<40} {count or 'not read by name'}")
    print(f"{sum(map(bool, found.values()))} of {len(found)} keys fail the type check when they are renamed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
