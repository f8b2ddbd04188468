"""Tables of settings: keys and descriptions from the schema, values from the configs, for `ci/pages.py`."""

import importlib
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel

from nemotron_shared.config.compose import compose
from nemotron_shared.config.overrides import leaves
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.shown import described, on_one_line
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
    """Settings of one engine in all stages that have it; marks settings that only some of them have or set differently.

    Args:
        engine: value for `engine=`; `transformers_lora` has other values for the engine `transformers`.
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
            elif below:  # otherwise the section around it is null in this stage
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


def engines_of(stage: str) -> Any:
    """The registry of a stage's engines."""
    return importlib.import_module(f"stages.{stage}.engines").ENGINES


def engine_class(stage: str, engine: str) -> type[BaseModel]:
    """Class of an engine's section."""
    return engines_of(stage).load(engine).settings


def values(stage: str, config: str, *overrides: str) -> dict[str, Any]:
    """Values by dotted key, with unresolved references."""
    tree = compose(ROOT / "stages" / stage / "config", config, overrides).tree
    return dict(leaves(OmegaConf.to_container(tree, resolve=False)))


def shown(value: Any) -> str:
    """A value as YAML on one line."""
    return cell(on_one_line(value))


def cell(text: str) -> str:
    """Escape text for a table."""
    return text.replace("|", "\\|")
