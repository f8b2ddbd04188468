"""Find env.toml in the working folder or a parent, or through NEMOTRON_ENV_FILE, then read and validate it.

loaded = load_profile("leonardo")
loaded.profile.partition         "boost_usr_prod"
loaded.origins["partition"]      "env.toml:4 [leonardo]"
"""

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nemotron_cluster.profiles.schema import ALIASES, NOT_OURS, PROFILES, RESERVED, Profile, Slurm, Wandb
from nemotron_shared.errors import UserError, did_you_mean

FILE = "env.toml"
VARIABLE = "NEMOTRON_ENV_FILE"
ROOT = "pyproject.toml"
"""Marks the project's root folder, where the search ends."""
EXTENDS = "extends"
LARGEST = 100_000
TWINS = ("nproc_per_node", "ntasks_per_node")
SHOWN = "env.toml.example shows how each key is written"
COPY = f"copy env.toml.example to {FILE} and fill in your machine"


@dataclass(frozen=True)
class Loaded:
    """A profile, and where each of its keys was written; `gpus_of_node` is the GPU count from env.toml, before any
    overrides.
    """

    name: str
    profile: Profile
    file: Path
    origins: dict[str, str] = field(default_factory=dict)
    wandb: Wandb | None = None
    gpus_of_node: int = 0


def env_file(start: Path | None = None) -> Path | None:
    """The env.toml for a folder, or None.

    Raises:
        UserError: NEMOTRON_ENV_FILE names a missing file.
    """
    if named := os.environ.get(VARIABLE):
        path = Path(named).expanduser()
        if not path.is_file():
            raise UserError(f"{VARIABLE} names {named}, and there is no such file", "correct the variable, or unset it")
        return path.resolve()
    for folder in [here := (start or Path.cwd()).resolve(), *here.parents]:
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / ".git").exists() or folder == Path.home():
            return None
        if (folder / ROOT).is_file() and "[tool.uv.workspace]" in (folder / ROOT).read_text(
            encoding="utf-8", errors="replace"
        ):
            return None
    return None


def load_profile(name: str, start: Path | None = None) -> Loaded:
    """Load a profile, merged with the profiles that it extends.

    Raises:
        UserError: no file, no such profile, or an unknown key or invalid value; the message names file and line.
    """
    file = env_file(start)
    if file is None:
        raise UserError(f"there is no {FILE} here or above, so no profile '{name}'", COPY)
    tables = read_tables(file)
    names = profile_names(tables)
    if name not in names:
        there = f"{file} has: {', '.join(names)}" if names else f"{file} has no profile; {COPY}"
        raise UserError(f"no profile named '{name}'", did_you_mean(name, names, there))
    values, origins = _extended(file, tables, name)
    wandb = RESERVED["wandb"]
    section = (
        _checked(file, "wandb", wandb, {ALIASES.get(key, key): value for key, value in tables["wandb"].items()})
        if "wandb" in tables
        else None
    )
    profile = _profile(file, name, values, origins)
    return Loaded(name, profile, file, origins, section, profile.gpus_per_node)  # ty: ignore[invalid-argument-type]


def read_tables(file: Path) -> dict[str, Any]:
    """The tables of the file, unprocessed.

    Raises:
        UserError: invalid TOML, an unreasonably large file, or a top-level value that is not a table.
    """
    if file.stat().st_size > LARGEST:
        raise UserError(f"{file}: larger than {LARGEST:,} bytes", "leave in it what is true of your machines")
    try:
        tables = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid TOML: {error}", SHOWN) from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UserError(
                f"{file}:{line_of(file, None, name)}: '{name}' stands outside of a table", "put it below a [NAME]"
            )
    return tables


def profile_names(tables: Iterable[str]) -> list[str]:
    """Names of the tables that are profiles."""
    return [name for name in tables if name not in (*RESERVED, *NOT_OURS)]


def _extended(file: Path, tables: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A profile's values merged over those of its parents, and the origin of each."""
    chain = [name]
    while (parent := tables[chain[-1]].get(EXTENDS)) is not None:
        where = f"{file}:{line_of(file, chain[-1], EXTENDS)}: [{chain[-1]}] extends '{str(parent)[:80]}'"
        if parent not in profile_names(tables):
            near = did_you_mean(str(parent), profile_names(tables), f"there are: {', '.join(profile_names(tables))}")
            raise UserError(f"{where}, which is no profile", near)
        if parent in chain:
            raise UserError(f"{where} in a circle: {' -> '.join([*chain, parent])}", "take one of them out")
        chain.append(parent)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for link in reversed(chain):
        for written, value in tables[link].items():
            if written == EXTENDS:
                continue
            key = ALIASES.get(written, written)
            joined = isinstance(value, dict) and isinstance(values.get(key), dict)
            values[key] = values[key] | value if joined else value
            origins[key] = f"{file.name}:{line_of(file, link, written)} [{link}]"
            for inner in value if isinstance(value, dict) else ():
                origins[f"{key}.{inner}"] = f"{file.name}:{line_of(file, link, inner)} [{link}]"
    return values, origins


def _profile(file: Path, name: str, values: dict[str, Any], origins: dict[str, str]) -> Profile:
    executor = values.get("executor", "local")
    where = f"{file}:{line_of(file, name, None)}: [{name}]"
    if not isinstance(executor, str) or executor not in PROFILES:
        said = str(executor)[:80]
        near = did_you_mean(said, PROFILES, f"there are: {', '.join(PROFILES)}")
        raise UserError(f"{where} executor '{said}' is unknown", near)
    values = {"executor": executor} | values
    profile = _checked(file, name, PROFILES[executor], values, origins)
    if isinstance(profile, Slurm) and (wrong := profile.wrong_together()):
        raise UserError(f"{where} {wrong}", SHOWN)
    return profile  # ty: ignore[invalid-explicit-return]


def _checked(
    file: Path, table: str, model: type[BaseModel], values: dict[str, Any], origins: dict[str, str] | None = None
) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        line = (origins or {}).get(key) or f"{file.name}:{line_of(file, table, key)} [{table}]"
        where = f"{file.parent}/{line}" if line.startswith(file.name) else line
        if first["type"] == "extra_forbidden":
            raise UserError(f"{where} unknown key '{key}'", _what_is_meant(key, model, values)) from error
        if first["type"] == "missing":
            raise UserError(f"{file}:{line_of(file, table, None)} [{table}] lacks the key '{key}'", SHOWN) from error
        deeper = "".join(f".{part}" for part in first["loc"][1:])
        said = first["msg"].removeprefix("Value error, ")
        what = f"{where} {key}{deeper}: {said}, not {first['input']!r}"[:1000]
        raise UserError(what, SHOWN) from error


def _what_is_meant(key: str, model: type[BaseModel], values: dict[str, Any]) -> str | None:
    """A suggestion for an unknown key: a similar key, or the executor that has it."""
    others = [name for name, other in PROFILES.items() if key in other.model_fields]
    if others and values.get("executor") not in others:
        return f"it is a key of executor = {' or '.join(map(repr, others))}; without one it is 'local'"
    return did_you_mean(key, _keys(model), _what_there_is(model))


def _keys(model: type[BaseModel]) -> list[str]:
    return [*model.model_fields, EXTENDS]


def _what_there_is(model: type[BaseModel]) -> str:
    return f"there are: {', '.join(_keys(model))}"


def line_of(file: Path, table: str | None, key: str | None) -> int:
    """The line of a key in a table, or of the table itself. tomllib does not report positions."""
    heads, keys = _lines(file.read_text(encoding="utf-8-sig", errors="replace"))
    head = heads.get((table, None), 1)
    return head if key is None else keys.get((table, key)) or heads.get((table, key), head)


Lines = dict[tuple[str | None, str | None], int]


@lru_cache(maxsize=2)
def _lines(text: str) -> tuple[Lines, Lines]:
    """Line numbers of tables, subtables and keys. Cached, since every key is looked up."""
    heads: Lines = {}
    keys: Lines = {}
    table: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line):
            table, *inner = [part.strip().strip("'\"") for part in head[1].split(".", 1)]
            heads.setdefault((table, None), number)
            heads |= {(table, name): number for name in inner}
        elif found := re.match(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w.-]+))\s*[=.]""", line):
            names = found[3].split(".") if found[3] else [found[1] or found[2] or ""]
            for length in range(len(names)):
                keys.setdefault((table, ".".join(names[: length + 1])), number)
    return heads, keys


def changed(loaded: Loaded, recipe: dict[str, Any], typed: dict[str, Any], origins: dict[str, str]) -> Loaded:
    """Merge a recipe's requests, the profile and typed overrides, in increasing precedence.

    Args:
        origins: where the keys of recipe and overrides were written.

    Raises:
        UserError: an unknown key or an invalid value; the message says where it was written.
    """
    own = loaded.profile.model_dump(exclude_unset=True)
    typed = {ALIASES.get(key, key): value for key, value in typed.items()}
    for one, other in (TWINS, TWINS[::-1]):
        if one in typed and other not in typed:
            own.pop(other, None)
    if "executor" in typed or "executor" in recipe:
        raise UserError("run.env.executor: the profile says what kind of cluster it is", "name another profile")
    origins = {key: origin for key, origin in origins.items() if key in typed or key not in own} | {
        key: origin for key, origin in loaded.origins.items() if key not in typed
    }
    values = recipe | own | typed
    for key in (*recipe, *typed):
        _checked_key(loaded, key, origins.get(key, "run.env"))
    profile = _profile(loaded.file, loaded.name, values, origins)
    return replace(loaded, profile=profile, origins=origins)


def _checked_key(loaded: Loaded, key: str, where: str) -> None:
    known = _keys(type(loaded.profile))
    if key not in known:
        raise UserError(
            f"{where}: run.env has no key '{key}'", did_you_mean(key, known, f"there are: {', '.join(known)}")
        )
