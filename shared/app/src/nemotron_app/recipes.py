"""Resolve config arguments of the command line: `sft/super3`, `tiny`, or a file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemotron_app.launch import stage_directory
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import leaves, of_the_same_name
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.shown import described
from nemotron_shared.config.validate import validate
from nemotron_shared.stages import STAGES
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, did_you_mean


def recipes(text: str, stage: str | None = None, stages: Sequence[str] = tuple(STAGES)) -> list[tuple[str, str]]:
    """Stages and configs that match. A name alone matches every stage that has it.

    Args:
        stage: the stage of a file outside of the stages' folders.
        stages: the stages to consider.

    Raises:
        UserError: unknown stage, config or file, or a file without a known stage.
    """
    path = Path(text)
    if path.suffix in {".yaml", ".yml"}:
        return [(stage or _stage_of(path, stages), text)]
    named, _, name = text.rpartition("/")
    if named and named not in stages:
        raise UserError(f"{text}: no stage '{named}'", did_you_mean(named, stages, f"there are: {', '.join(stages)}"))
    asked = [named or stage or ""] if named or stage else stages
    known = {one: names(one) for one in asked}
    found = [(one, name) for one in asked if name in known[one]]
    if not found:
        if name in stages and not named:
            raise UserError(
                f"'{name}' is a stage, with several configs", f"name one: {name}/{f' {name}/'.join(names(name))}"
            )
        every = sorted({choice for choices in known.values() for choice in choices})
        raise UserError(f"no config named '{name}'", did_you_mean(name, every, f"there are: {', '.join(every)}"))
    return found


def recipe(text: str, stage: str | None = None) -> tuple[str, str]:
    """The one matching stage and config.

    Raises:
        UserError: no match, or several stages match.
    """
    found = recipes(text, stage)
    if len(found) > 1:
        raise UserError(
            f"several stages have a config '{text}'", f"say one: {', '.join('/'.join(one) for one in found)}"
        )
    return found[0]


def names(stage: str) -> list[str]:
    """Names of a stage's configs."""
    return sorted(file.stem for file in (stage_directory(stage) / "config").glob("*.yaml"))


def title(stage: str, name: str) -> str:
    """First sentence of a config's header comment."""
    lines = read_text(stage_directory(stage) / "config" / f"{name}.yaml").splitlines()
    head = []
    for line in lines:
        if not line.startswith("#") or line.startswith(("#   ", "# @")):
            break
        head.append(line.removeprefix("#").strip())
    return " ".join(head).partition(". ")[0].rstrip(".:")


def composed(stage: str, choice: str, overrides: Sequence[str]) -> Composed:
    """The config with these overrides; references are not resolved."""
    return compose(stage_directory(stage) / "config", choice, overrides)


def require_valid(stage: str, config: Composed) -> StageConfig | None:
    """Validate all values that are known without an artifact; returns None if some are not known.

    Raises:
        UserError: names where each invalid value was set.
    """
    try:
        values = resolve(config.tree, lambda role, name: f"<{name} of {role}>")
    except UserError as error:  # an environment variable or another referenced value is missing
        say(f"the values are not checked: {error.message}")
        return None
    return validate(import_module(f"stages.{stage}.train").STEP.schema, values, config.origins)


def tree(config: Composed) -> Mapping[str, object]:
    """Values of a config, references unresolved."""
    values = OmegaConf.to_container(config.tree, resolve=False)
    assert isinstance(values, Mapping)
    return {str(key): value for key, value in values.items()}


def _stage_of(path: Path, stages: Sequence[str]) -> str:
    if not path.is_file():
        raise UserError(f"file {path} not found", "give a config's path, or STAGE/NAME such as sft/super3")
    folders = {(stage_directory(name) / "config").resolve(): name for name in stages}
    stage = next((name for folder, name in folders.items() if folder in path.resolve().parents), None)
    if stage is not None:
        return stage
    content = parsed(path, read_text(path))
    sections = content.keys() - {"defaults"} if isinstance(content, dict) else set()
    having = [name for name in stages if sections <= _sections(name)]
    if len(having) != 1:
        raise UserError(f"{path}: the stage is ambiguous", f"add --stage {'|'.join(having or stages)}")
    return having[0]


def _sections(stage: str) -> set[str]:
    """Names of the sections of a stage's configs."""
    return {
        field.alias or name for name, field in import_module(f"stages.{stage}.train").STEP.schema.model_fields.items()
    }


LINK = re.compile(r"\[([^]]+)\]\(([^)#]*)(#[\w-]+)?\)")
"""A Markdown link: descriptions are shared with the READMEs of the stages."""
SHOWN = ("default", "local", "tiny")
"""Configs whose values are shown."""


def explained(key: str, stages: Sequence[str]) -> list[dict[str, Any]]:
    """The setting `key`, or every setting of a section, with its description and its values by stage and config.

    Raises:
        UserError: unknown in every stage.
    """
    words = {stage: dict(_words(stage)) for stage in stages}
    known = list(dict.fromkeys(one for keys in words.values() for one in keys))
    wanted = [one for one in known if one == key or one.startswith(f"{key}.")]
    if not wanted:
        raise _unknown(key, stages, known)
    values = {stage: {name: dict(leaves(tree(composed(stage, name, [])))) for name in SHOWN} for stage in stages}
    found = []
    for one in wanted:
        meaning = next(keys[one] for keys in words.values() if one in keys)
        held = {}
        for stage, configs in values.items():
            held[stage] = {name: known[one] for name, known in configs.items() if one in known}
        found.append({"key": one, "meaning": meaning, "values": {stage: its for stage, its in held.items() if its}})
    return found


def _unknown(key: str, stages: Sequence[str], known: Sequence[str]) -> UserError:
    of = "" if len(stages) == len(STAGES) else f" in {' and '.join(stages)}"
    others = [stage for stage in STAGES if stage not in stages]
    having = [stage for stage in others if any(f"{one}.".startswith(f"{key}.") for one, _ in _words(stage))]
    by_last = of_the_same_name(key, known)
    if having:
        remedy: str | None = f"it is one of {' and '.join(having)}: nemotron config explain {key} --stage {having[0]}"
    elif by_last:
        remedy = f"there is: {', '.join(by_last)}"
    else:
        remedy = did_you_mean(key, known, f"see: nemotron config show {stages[0]}/local")
    return UserError(f"no setting{of} is called '{key}'", remedy)


def meaning_of(key: str, stage: str) -> str:
    """The description of a setting of a stage."""
    return dict(_words(stage))[key]


def _words(stage: str) -> Iterator[tuple[str, str]]:
    """Key and description of all settings of a stage and its engines. A key may occur twice with different meanings."""
    step = import_module(f"stages.{stage}.train").STEP
    yield from ((key, _plain(meaning, stage)) for key, meaning in described(step.schema, None))
    engines: dict[str, dict[str, list[str]]] = {}
    for name in step.engines.own:
        for key, meaning in described(step.engines.load(name).settings, None, "engine."):
            engines.setdefault(key, {}).setdefault(_plain(meaning, stage), []).append(name)
    for key, meanings in engines.items():
        yield key, "\n  ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())


def _plain(meaning: str, stage: str) -> str:
    """Replace Markdown links by the name of the section or page they point to."""
    return LINK.sub(lambda link: f"{link[1]} in {link[2] or f'stages/{stage}/README.md'}", meaning)
