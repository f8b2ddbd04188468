"""Resolve config arguments of the command line: `sft/super3`, `tiny`, or a file."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

from nemotron_app.launch import stage_directory
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.files import read_text
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.runtime.console import say
from nemotron_shared.stages import STAGES


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
        raise UserError(f"there is no file {path}", "give a config's path, or STAGE/NAME such as sft/super3")
    folders = {(stage_directory(name) / "config").resolve(): name for name in stages}
    stage = next((name for folder, name in folders.items() if folder in path.resolve().parents), None)
    if stage is None:
        raise UserError(f"{path}: of which stage?", f"say it: --stage {'|'.join(stages)}")
    return stage
