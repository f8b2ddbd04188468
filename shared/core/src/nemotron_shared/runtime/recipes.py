"""Which family a config is a recipe of, and the refusal of one that belongs to another."""

from typing import TYPE_CHECKING

import yaml

from nemotron_shared.config.compose import Composed, override_key
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.remedies import command_of

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step


def of_another_family(step: "Step", family: str, arguments: Arguments, composed: Composed) -> UserError | None:
    """The error where a recipe, or a layout that `engine=` names, is not for the family at hand."""
    recipe = next(iter(families_of(composed)), None)
    if recipe and recipe[0] != family:
        message = f"{recipe[1]}: a recipe of the family {recipe[0]}, and run.family is {family}"
        return UserError(message, f"say: {command_of(step, recipe[0], arguments, composed)}")
    for other, _ in families_of(composed, "engine"):
        if other != family:
            chosen = next((text for text in arguments.overrides if override_key(text) == "engine"), "engine")
            message = f"{chosen}: a layout of the family {other}, and run.family is {family}"
            return UserError(message, "leave it out; engine.world_size and the sizes beside it are the layout")
    return None


def families_of(composed: Composed, group: str | None = None) -> list[tuple[str, str]]:
    """The families that recipes are written for, with their files, the last one merged first; `default`, `tiny` and
    whatever takes any family are not among them.

    Args:
        group: only options of this config group, such as the layouts of `engine`.
    """
    found = []
    for file in reversed(composed.files):
        if file.stem == "default" or (group is not None and file.parent.name != group):
            continue
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        run = values.get("run") if isinstance(values, dict) else None
        family = run.get("family") if isinstance(run, dict) else None
        if isinstance(family, str) and "$" not in family:
            found.append((family, file.name))
    return found
