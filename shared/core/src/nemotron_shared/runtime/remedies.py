"""Commands that make what is missing, for messages. All of them exist: their config is looked up.

Also the check that a recipe is run for its own family, whose remedy is such a command.
"""

from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from nemotron_shared.config.compose import Composed
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import override_key
from nemotron_shared.errors import UserError
from nemotron_shared.families import families
from nemotron_shared.runtime.records import is_recorded
from nemotron_shared.runtime.start import Preflight
from nemotron_shared.stages import STAGES

SECTION = "data_prep"
REQUIRED = {"source": "FILE", "tokenizer.model": "FOLDER"}
"""Data preparation settings that a config may leave to the user."""


def how_to_make(checked: Preflight, role: str, *, again: bool = False) -> str:
    """The command that makes a missing input or, with `again`, a damaged one."""
    step, family = checked.step, checked.run.family
    force = " --force" if again else ""
    if role == "data":
        return how_to_prepare(checked) + force
    before = STAGES[step.stage].before or step.stage
    known = [file.stem for file in (step.directory.parent / before / "config").glob("*.yaml")]
    # the other stage's config of the same name, else the first phase of the family's recipe; a later phase of the
    # same stage starts from an earlier one, which its own command would not make
    recipes = sorted((name for name in known if name.startswith(family)), key=lambda name: (len(name), name))
    same = () if before == step.stage else (checked.start.arguments.config,)
    name = next((name for name in (*same, family, *recipes) if name in known), None)
    hub = families()[family].hub if family in families() else None
    given = f"give run.{role}={f'hf://{hub}, or a ' if hub else ''}FOLDER"
    return f"make it: nemotron {family} {before} -c {name}{force} (or {given})" if name else given


def how_to_prepare(checked: Preflight) -> str:
    """The command that prepares the data these settings describe; FILE and FOLDER stand for the user's choice."""
    arguments = checked.start.arguments
    options = [text for text in arguments.overrides if override_key(text).split(".")[0] == SECTION]
    given = {override_key(text) for text in options}
    for key, what in REQUIRED.items():
        section, _, name = f"{SECTION}.{key}".rpartition(".")
        place: Any = checked.composed.tree
        for part in section.split("."):
            place = place.get(part) if isinstance(place, DictConfig) else None
        if isinstance(place, DictConfig) and name in place and place[name] is None and f"{SECTION}.{key}" not in given:
            options.append(f"{SECTION}.{key}={what}")
    words = ["data prep", checked.step.stage, "-c", arguments.config, *options]
    return " ".join(["make it: nemotron", checked.run.family, *words])


class Recipe(NamedTuple):
    """A config file written for one family."""

    family: str
    file: Path


def recipes_of(composed: Composed) -> list[Recipe]:
    """Files written for one family, the last merged first.

    Excludes `default`, `tiny` and others for any family, and recorded values of runs, which name the family they
    happened to have.
    """
    found = []
    for file in reversed(composed.files):
        if file.stem == "default" or is_recorded(file):
            continue
        values = parsed(file, read_text(file))
        run = values.get("run") if isinstance(values, dict) else None
        family = run.get("family") if isinstance(run, dict) else None
        if isinstance(family, str) and "$" not in family:
            found.append(Recipe(family, file))
    return found


def of_another_family(checked: Preflight, recipes: list[Recipe]) -> UserError | None:
    """The error for a recipe, or a layout named by `engine=`, of another family than the run's."""
    family, overrides = checked.run.family, checked.start.arguments.overrides
    if recipes and recipes[0].family != family:
        other = recipes[0].family
        message = f"{recipes[0].file.name}: a recipe of the family {other}, and run.family is {family}"
        return UserError(message, f"say: {_same_command(checked, other)}")
    for other, file in recipes:
        if file.parent.name == "engine" and other != family:
            chosen = next((text for text in overrides if override_key(text) == "engine"), "engine")
            message = f"{chosen}: a layout of the family {other}, and run.family is {family}"
            return UserError(message, "leave it out; engine.world_size and the sizes beside it are the layout")
    return None


def _same_command(checked: Preflight, family: str) -> str:
    """The same command for another family."""
    step, arguments = checked.step, checked.start.arguments
    words = ["data", "prep", step.stage] if step.verb == "data_prep" else [step.stage]
    options = [text for text in arguments.overrides if override_key(text) != "run.family"]
    # a recipe with reasons for being experimental belongs to an experimental family
    flag = ["--allow-experimental"] if checked.composed.tree.engine.get("experimental") else []
    return " ".join(["nemotron", family, *words, "-c", arguments.config, *options, *flag])
