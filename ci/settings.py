"""Tables of settings: keys and words from the schema, values from the configs; `ci/pages.py` puts them into pages."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf import OmegaConf
from pydantic import BaseModel

from nemotron_shared.config.compose import compose, leaves
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.stages import STAGES

ROOT = Path(__file__).resolve().parent.parent


def stage_tables(stage: str) -> dict[str, str]:
    """One table for each section of a stage's config, with the engine that trains on this machine."""
    default, local, tiny = (values(stage, name) for name in ("default", "local", "tiny"))
    schema: type[StageConfig] = importlib.import_module(f"stages.{stage}.train").STEP.schema
    words = dict(described(schema, engine_class(stage, str(local["engine.name"]))))
    tables: dict[str, list[str]] = {}
    for key, value in local.items():
        section = key.partition(".")[0]
        below = {name.removeprefix(f"{key}."): one for name, one in default.items() if name.startswith(f"{key}.")}
        ours = "" if section == "engine" else f"`{shown(default.get(key, below))}`"
        changed = f"`{shown(value)}`" if section == "engine" or value != default.get(key, below) else ""
        smaller = f"`{shown(tiny[key])}`" if tiny[key] != value else ""
        rows = tables.setdefault(section, ["| key | meaning | default | local | tiny |", "|---|---|---|---|---|"])
        rows.append(
            " ".join(
                f"| {text}" if text else "|" for text in (f"`{key}`", cell(words[key]), ours, changed, smaller, "")
            )
        )
    return {section: "\n".join(rows) for section, rows in tables.items()}


def engine_table(engine: str) -> str:
    """The settings of one engine in all stages that have it; what only some of them have, or set otherwise, says so.

    Args:
        engine: what `engine=` takes; `transformers_lora` are other values of the engine `transformers`.
    """
    name = engine.removesuffix("_lora")
    stages = [stage for stage in STAGES if name in engines_of(stage).own]
    words = {stage: dict(described(engine_class(stage, name), None, "engine.")) for stage in stages}
    found: dict[str, dict[str, str]] = {}
    for stage in stages:
        chosen = values(stage, "default", f"engine={engine}")
        for key in words[stage]:
            below = {name.removeprefix(f"{key}."): one for name, one in chosen.items() if name.startswith(f"{key}.")}
            if key in chosen:
                found.setdefault(key, {})[stage] = f"`{shown(chosen[key])}`"
            elif below:  # if not, the section around it is null in this stage
                is_section = any(one.startswith(f"{key}.") for one in words[stage])
                found.setdefault(key, {})[stage] = "the rows below" if is_section else f"`{shown(below)}`"
    rows = ["| key | meaning | default |", "|---|---|---|"]
    for key, by_stage in found.items():
        only = "" if all(key in words[stage] for stage in stages) else f"{', '.join(by_stage)} only. "
        same = set(by_stage.values())
        value = same.pop() if len(same) == 1 else ", ".join(f"{one} ({name})" for name, one in by_stage.items())
        meaning = next(words[stage][key] for stage in reversed(stages) if key in words[stage])
        rows.append(f"| `{key}` | {only}{cell(meaning)} | {value} |")
    return "\n".join(rows)


def described(section: type[BaseModel], engine: type[BaseModel] | None, above: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and words of every setting."""
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
    """The section that a field holds, also where it may be null instead."""
    members = [one for one in (annotation, *get_args(annotation)) if inspect.isclass(one)]
    if any(one in (list, dict) for one in members) or str(annotation).startswith(("list", "dict")):
        return None
    return next((one for one in members if issubclass(one, BaseModel)), None)


@cache
def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """What stands below each field of a class, and of the classes that it derives from.

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


def engines_of(stage: str) -> Any:
    """The registry of a stage's engines."""
    return importlib.import_module(f"stages.{stage}.engines").ENGINES


def engine_class(stage: str, engine: str) -> type[BaseModel]:
    """The class of an engine's section."""
    return engines_of(stage).load(engine).settings


def values(stage: str, config: str, *overrides: str) -> dict[str, Any]:
    """Values by dotted key, references as they are written."""
    tree = compose(ROOT / "stages" / stage / "config", config, overrides).tree
    return dict(leaves(OmegaConf.to_container(tree, resolve=False)))


def shown(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return cell(text.removesuffix("\n").removesuffix("\n...").strip())


def cell(text: str) -> str:
    """Text in a table."""
    return text.replace("|", "\\|")
