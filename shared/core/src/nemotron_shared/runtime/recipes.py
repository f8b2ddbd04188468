"""Find the family a config is a recipe for, and refuse one of another family."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nemotron_shared.config.compose import Composed
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.overrides import override_key
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.attempts import is_recorded
from nemotron_shared.runtime.remedies import command_of

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step


class Recipe(NamedTuple):
    """A config file written for one family."""

    family: str
    file: Path


def of_another_family(
    step: "Step", family: str, recipes: Sequence[Recipe], arguments: Arguments, composed: Composed
) -> UserError | None:
    """The error for a recipe, or a layout named by `engine=`, of another family than `family`.

    Args:
        recipes: those of `composed`.
    """
    if recipes and recipes[0].family != family:
        other = recipes[0].family
        message = f"{recipes[0].file.name}: a recipe of the family {other}, and run.family is {family}"
        return UserError(message, f"say: {command_of(step, other, arguments, composed)}")
    for other, file in recipes:
        if file.parent.name == "engine" and other != family:
            chosen = next((text for text in arguments.overrides if override_key(text) == "engine"), "engine")
            message = f"{chosen}: a layout of the family {other}, and run.family is {family}"
            return UserError(message, "leave it out; engine.world_size and the sizes beside it are the layout")
    return None


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
