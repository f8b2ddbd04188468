"""Functions in a Python file of the user's own, which a config names: rewards, tasks and scorers.

    rewards=[{path: my_rewards.py:right_call}]

    def right_call(completion, row):                # my_rewards.py
        return float(row["city"] in completion)

A function gets what its parameters are named after. The file may import other files of its folder; packages that are
installed come before these. Looking at a file runs nothing of it: a start finds a missing function, or a parameter that
nothing can be given for, in its syntax tree. The file only runs with `--trust-code`. Its code, with all that it imports
from its folder, is part of the result's identity, like the modules of a package.
"""

import ast
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from nemotron_shared.step.code import modules_of, read_module
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import Finding, UserError, did_you_mean, problem

KEYS: Mapping[str, tuple[str, ...]] = {
    "rewards": ("completion", "expected", "prompt", "row"),
    "data_prep.tasks": ("seed",),
    "evaluation.scorers": ("completion", "expected", "row"),
}
"""Lists of settings whose entries may have a `path`, and what such a function may ask for."""
SECTIONS = frozenset(key.partition(".")[0] for key in KEYS)
OURS = re.compile(r"stages|nemotron|nemotron_(?:app|cluster|data|engines|serving|shared)")
"""Our own packages, which are installed, and so come before a folder of the same name."""
ITSELF = "<file>"
"""Stands for the file among the names of modules: a package next to it may be called like it."""
FORM = "write FILE.py:FUNCTION, such as my_rewards.py:right_call"


@dataclass(frozen=True)
class OwnFunction:
    """A function in a file, `FILE.py:FUNCTION`.

    Attributes:
        path: as the config has it; a relative file is looked for in the working folder.
    """

    path: str

    def __post_init__(self) -> None:
        if not self.path.rpartition(":")[0].endswith(".py") or not self.name.isidentifier():
            raise UserError(f"{self.path} names no function in a Python file", FORM)

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.path.rpartition(":")[2]

    @property
    def written(self) -> str:
        """The file, as the config has it."""
        return self.path.rpartition(":")[0]

    @cached_property
    def file(self) -> Path:
        """The file."""
        return Path(self.written).expanduser().resolve()

    def modules(self) -> dict[str, Path]:
        """The file and those of its folder that it imports, directly or indirectly, by their place below the folder.

        A file that is a symlink has the name of the symlink.

        Raises:
            UserError: there is no such file, or one of them is not Python.
        """
        imported = [self._file_of(name) for name in self.digests() if name != ITSELF]
        return {Path(self.written).name: self.file, **{str(one.relative_to(self.file.parent)): one for one in imported}}

    def digests(self) -> dict[str, str]:
        """Digest of the syntax tree of each module of `modules`, by dotted name, and of the file as `ITSELF`.

        Raises:
            UserError: as `modules`.
        """
        if not self.file.is_file():
            raise UserError(f"{self.written}: no such file", f"paths are read from {Path.cwd()}: {FORM}")
        folder = self.file.parent
        names = {path.stem for path in folder.iterdir() if path.stem.isidentifier() and not OURS.fullmatch(path.stem)}
        try:
            digest, imports = read_module(self.file, package="")
            return {ITSELF: digest, **modules_of(imports, {name: folder / name for name in names})}
        except SyntaxError as error:
            place = self._said(Path(error.filename)) if error.filename else self.written
            raise UserError(f"{place}:{error.lineno}: not Python: {error.msg}", "correct that line") from error
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise UserError(f"{self.written}: not Python: {error}", "correct the file") from error

    def problems(self, given: Collection[str]) -> Iterator[Finding]:
        """What is wrong with the function by the look of it; runs nothing.

        Args:
            given: names of what it may ask for.
        """
        try:
            self.digests()
        except UserError as error:
            yield error.finding
            return
        tree = ast.parse(self.file.read_bytes())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        node = functions.get(self.name)
        if node is None:
            if self.name not in _bound(tree):
                there = f"it has: {', '.join(functions)}" if functions else f"write it: def {self.name}(...)"
                yield problem(
                    f"{self.written} has no function '{self.name}'", did_you_mean(self.name, functions, there)
                )
            return
        place = f"{self.written}:{node.lineno}"
        if isinstance(node, ast.AsyncFunctionDef):
            yield problem(f"{place}: {self.name} is async, and would return no value", "write def instead of async def")
        elif not node.decorator_list:  # a decorator may give it other parameters
            yield from self._of_parameters(place, *_parameters(node.args), given)

    def _of_parameters(
        self, place: str, asked: Sequence[str], by_place: Sequence[str], rest: str | None, given: Collection[str]
    ) -> Iterator[Finding]:
        """Args: rest: its parameter `*rest`, if it has no other."""
        if rest is not None:
            what = f"{place}: {self.name} takes '*{rest}' by their places, and parameters are given by name"
            yield problem(what, f"name those that it needs, of: {', '.join(given)}")
        if by_place:
            what = f"{place}: {self.name} takes '{by_place[0]}' by its place, and parameters are given by name"
            yield problem(what, "leave the / out")
        for name in asked:
            if name not in given and name not in by_place:
                what = f"{place}: {self.name} asks for '{name}', and may ask for: {', '.join(given)}"
                yield problem(what, did_you_mean(name, given, "rename the parameter, or give it a default"))

    def load(self, given: Collection[str]) -> tuple[Callable[..., Any], tuple[str, ...]]:
        """The function, and the names of what it asks for. Runs the file: only after `own_code_problems`.

        Raises:
            UserError: the file cannot be run, has no such function, or it asks for something else.
        """
        for found in self.problems(given):
            raise UserError(found.message, found.remedy)
        module = self._module()
        function = getattr(module, self.name, None)
        if not callable(function):
            raise UserError(f"{self.written} has no function '{self.name}'", FORM)
        try:
            parameters = [*inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):  # written in another language, it may not tell
            return function, tuple(given)
        every = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        needed = [one.name for one in parameters if one.name in every and one.default is one.empty]
        by_place = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
        rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL and len(parameters) == 1), None)
        for found in self._of_parameters(self.written, needed, by_place, rest, given):
            raise UserError(found.message, found.remedy)
        if any(one.kind is one.VAR_KEYWORD for one in parameters):
            return function, tuple(given)
        return function, tuple(name for name in every if name in given)

    def place_of(self, error: BaseException) -> str:
        """Where in the user's files an error comes from: `my_rewards.py:12`."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [one for one in frames if Path(one.filename).is_relative_to(self.file.parent)]
        return f"{self._said(Path(own[-1].filename))}:{own[-1].lineno}" if own else self.written

    def _module(self) -> ModuleType:
        """The file's module, run once in a process for each state of its code."""
        digests = self.digests()
        name = f"own_{json_digest([str(self.file), digests])[:12]}_{re.sub(r'[^a-zA-Z0-9]', '_', self.file.stem)}"
        if (there := sys.modules.get(name)) is not None:
            return there
        self._forget(digests)
        spec = importlib.util.spec_from_file_location(name, self.file)
        assert spec is not None, "its name ends in .py"
        assert spec.loader is not None, "it is a file"
        module = importlib.util.module_from_spec(spec)
        sys.meta_path.append(OwnFolder(self.file.parent, frozenset(one.partition(".")[0] for one in digests)))
        modules, paths = {*sys.modules}, [*sys.path]
        sys.modules[name] = module  # dataclasses look for it
        try:
            spec.loader.exec_module(module)
            self._require_own(digests)
            self._require_counted(digests, {one: sys.modules[one] for one in sys.modules.keys() - modules}, paths)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            if isinstance(error, UserError):
                raise
            what = f"{self.place_of(error)}: importing it raised {type(error).__name__}: {error}"
            raise UserError(what, f"run it alone: python {self.written}") from error
        return module

    def _forget(self, digests: Collection[str]) -> None:
        """Forget modules that another file of the folder imported, or this one before they were changed."""
        packages = {one.rpartition(".")[0] for one in digests}  # one without __init__.py has no digest
        for one in {*digests, *packages} & sys.modules.keys():
            module, file = sys.modules[one], self._file_of(one)
            folder = str(self.file.parent.joinpath(*one.split(".")))
            if getattr(module, "__file__", None) == str(file) or folder in getattr(module, "__path__", ()):
                del sys.modules[one]

    def _require_own(self, digests: Collection[str]) -> None:
        """Refuse a file of the folder in whose place another one was imported: its code is not that of the digest."""
        for name in digests:
            place, file = getattr(sys.modules.get(name), "__file__", None), self._file_of(name)
            if place is not None and Path(place).resolve() != file.resolve():
                what = f"{self._said(file)}: another module is called '{name}': {place}"
                raise UserError(what, "rename the file, and its imports")

    def _require_counted(
        self, digests: Collection[str], imported: Mapping[str, ModuleType], paths: Sequence[str]
    ) -> None:
        """Refuse a file of the folder that was imported but has no digest, as by `importlib.import_module`.

        Args:
            imported: what the file imported, by name.
            paths: `sys.path` before; packages may be installed below the folder.
        """
        folder = self.file.parent
        counted = {self._file_of(one) for one in digests}
        installed = [one for one in map(Path, [sys.prefix, *paths]) if one.is_absolute() and one != folder]
        installed = [one for one in installed if one.is_relative_to(folder)]
        for name, module in imported.items():
            place = Path(getattr(module, "__file__", None) or "")
            if not place.is_relative_to(folder) or place in counted or any(map(place.is_relative_to, installed)):
                continue
            if not OURS.fullmatch(name.partition(".")[0]):
                del sys.modules[name]
                what = f"{self._said(place)} was imported, but no import statement that can be followed names it"
                raise UserError(what, f"write in {self.written}: import {name}")

    def _file_of(self, module: str) -> Path:
        if module == ITSELF:
            return self.file
        base = self.file.parent.joinpath(*module.split("."))
        package = base / "__init__.py"
        return package if package.is_file() else base.with_suffix(".py")

    def _said(self, file: Path) -> str:
        """A file of the folder, named as the config names its own."""
        written = Path(self.written)
        return str(written if file == self.file else written.parent / file.relative_to(self.file.parent))


class OwnFolder(MetaPathFinder):
    """Finds the modules that a file of the user's imports from its folder, and no others.

    It comes last, so that no file of the folder takes the place of a package.
    """

    def __init__(self, folder: Path, names: frozenset[str]) -> None:
        self._folder, self._names = str(folder), names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder; a package finds its own modules."""
        if path is not None or fullname not in self._names:
            return None
        return PathFinder.find_spec(fullname, [self._folder], target)


def _parameters(args: ast.arguments) -> tuple[list[str], list[str], str | None]:
    """The parameters of a function that have no default, those given by place alone, and `*rest` without any other."""
    listed = [*args.posonlyargs, *args.args]
    needed = listed[: len(listed) - len(args.defaults)] if args.defaults else listed
    keyword = [one for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    rest = args.vararg.arg if args.vararg and not (listed or args.kwonlyargs or args.kwarg) else None
    return [one.arg for one in (*needed, *keyword)], [one.arg for one in args.posonlyargs], rest


def _bound(tree: ast.Module) -> set[str]:
    """Every name that a module may bind by other means than a function."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def function_path(text: str) -> str:
    """The same text, for a validator of settings; raises ValueError if it is not of the form FILE.py:FUNCTION."""
    try:
        return OwnFunction(text).path
    except UserError as error:
        raise ValueError(str(error)) from error


def functions_in(values: Mapping[str, Any], sections: Collection[str]) -> dict[str, list[OwnFunction]]:
    """The functions that a config names, by the key of the list; those of other sections are left out.

    Raises:
        UserError: a path is not of the form FILE.py:FUNCTION.
    """
    found: dict[str, list[OwnFunction]] = {}
    for key in KEYS:
        section, *below = key.split(".")
        entries: Any = values.get(section) if section in sections else None
        for name in below:
            entries = entries.get(name) if isinstance(entries, Mapping) else None
        listed = entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ()
        paths = [one["path"] for one in listed if isinstance(one, Mapping) and isinstance(one.get("path"), str)]
        if paths:
            found[key] = list(map(OwnFunction, paths))
    return found


def digests_in(values: Mapping[str, Any], sections: Collection[str]) -> dict[str, str]:
    """Digest of every file of the user's that a config's functions need, by its path.

    Raises:
        UserError: a file is missing, or is not Python.
    """
    functions = [one for found in functions_in(values, sections).values() for one in found]
    return {one._said(one._file_of(name)): digest for one in functions for name, digest in one.digests().items()}


def own_code_problems(values: Mapping[str, Any], sections: Collection[str], lacks: str | None) -> Iterator[Finding]:
    """What keeps the functions that a config names from being called; runs nothing of them.

    Args:
        lacks: the option that would let them run, if it was not given.
    """
    for key, functions in functions_in(values, sections).items():
        found = [one for function in functions for one in function.problems(KEYS[key])]
        yield from (problem(one.message, one.remedy, key) for one in found)
        if lacks is not None and not found:
            files = ", ".join(dict.fromkeys(function.written for function in functions))
            yield problem(f"this runs {files}", f"read it, then add {lacks} to the command", key)
