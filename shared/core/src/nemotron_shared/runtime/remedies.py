"""Commands that make what is missing, for messages. All of them exist: their config is looked up."""

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from nemotron_shared.config.compose import Composed
from nemotron_shared.config.overrides import override_key
from nemotron_shared.config.schema import RunSection
from nemotron_shared.families import families
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.stages import STAGES

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

SECTION = "data_prep"
REQUIRED = {"source": "FILE", "tokenizer.model": "FOLDER"}
"""Data preparation settings that a config may leave to the user."""


def how_to_make(
    step: "Step", role: str, run: RunSection, arguments: Arguments, composed: Composed, *, again: bool = False
) -> str:
    """The command that makes a missing input or, with `again`, a damaged one."""
    force = " --force" if again else ""
    if role == "data":
        return how_to_prepare(step, run, arguments, composed) + force
    before = STAGES[step.stage].before or step.stage
    known = [file.stem for file in (step.directory.parent / before / "config").glob("*.yaml")]
    # the other stage's config of the same name, else the first phase of the family's recipe; a later phase of the
    # same stage starts from an earlier one, which its own command would not make
    recipes = sorted((name for name in known if name.startswith(run.family)), key=lambda name: (len(name), name))
    same = () if before == step.stage else (arguments.config,)
    name = next((name for name in (*same, run.family, *recipes) if name in known), None)
    hub = families()[run.family].hub if run.family in families() else None
    given = f"give run.{role}={f'hf://{hub}, or a ' if hub else ''}FOLDER"
    return f"make it: nemotron {run.family} {before} -c {name}{force} (or {given})" if name else given


def how_to_prepare(step: "Step", run: RunSection, arguments: Arguments, composed: Composed) -> str:
    """The command that prepares the data these settings describe; FILE and FOLDER stand for the user's choice."""
    options = [text for text in arguments.overrides if override_key(text).split(".")[0] == SECTION]
    given = {override_key(text) for text in options}
    for key, what in REQUIRED.items():
        section, _, name = f"{SECTION}.{key}".rpartition(".")
        place: Any = composed.tree
        for part in section.split("."):
            place = place.get(part) if isinstance(place, DictConfig) else None
        if isinstance(place, DictConfig) and name in place and place[name] is None and f"{SECTION}.{key}" not in given:
            options.append(f"{SECTION}.{key}={what}")
    return " ".join(["make it: nemotron", run.family, "data prep", step.stage, "-c", arguments.config, *options])


def command_of(step: "Step", family: str, arguments: Arguments, composed: Composed) -> str:
    """The same command for another family."""
    words = ["data", "prep", step.stage] if step.verb == "data_prep" else [step.stage]
    options = [text for text in arguments.overrides if override_key(text) != "run.family"]
    # a recipe with reasons for being experimental belongs to an experimental family
    flag = ["--allow-experimental"] if composed.tree.engine.get("experimental") else []
    return " ".join(["nemotron", family, *words, "-c", arguments.config, *options, *flag])
