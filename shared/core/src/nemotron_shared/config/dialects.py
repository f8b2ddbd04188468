"""Other projects' own configs and keys, said in ours.

    policy.dtensor_cfg.cpu_offload=true    ->  ++engine.overrides.policy.dtensor_cfg.cpu_offload=true
    step_scheduler.max_steps=400           ->  train.train_iters=400
    -c nemotron_automodel_insecure.yaml    ->  a config of ours, with a note of the line that each value is from

A dialect is a table of a library's keys. What one of our settings decides becomes that setting; what only the library
knows goes to the engine as it is; what has no meaning here is said in a line. A package adds one as an entry point of
the group `nemotron.dialects`.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.config.files import require_plain_numbers
from nemotron_shared.config.keys import is_at
from nemotron_shared.config.overrides import COMMAND_LINE
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.errors import UserError, did_you_mean

Settings = dict[str, Any]
"""Values of ours by dotted key."""


@dataclass(frozen=True)
class NoEffect:
    """A key that is accepted and changes nothing here; `why` says what does its work."""

    why: str


@dataclass(frozen=True)
class Refused:
    """A key that cannot be obeyed; `remedy` says what to write in its place."""

    remedy: str


@dataclass(frozen=True)
class Whole:
    """What a file says as a whole.

    Attributes:
        settings: settings of ours.
        notes: what people should know of them.
        taken: keys that only mean something together with others, and our key that each was made into; None where it
            was made into nothing, which a note says.
    """

    settings: Settings
    notes: Sequence[str] = ()
    taken: Mapping[str, str | None] = field(default_factory=dict)


Meaning = str | NoEffect | Refused | Callable[[Any], Settings]
"""Our key for a key of theirs, or what their value means in settings of ours; such a function is for that key only."""


@dataclass(frozen=True)
class Dialect:
    """The keys of one library.

    Attributes:
        library: its name, for messages.
        engine: the name that `engine=` takes; None where the keys are meant for any engine.
        is_its: whether the content of a file is this library's.
        keys: what each key means; one that names a section means all that is in it.
        rest: where all other keys go, below the names that they have; None: they are unknown.
        sections: the sections of the library's config, so that a single key is known as one of its.
        resolvers: functions that its files compute with.
        whole: what a file says as a whole, by its content and name: the recipe that it builds on, and what the library
            takes where the file is silent. It wins over single keys.
        recipe: the recipe of the library that a file leaves its values to, as `engine.recipe` names it. The file is
            built on the config of ours that describes the same recipe.
        fits: whether the keys are about a config of ours, by its own keys.
    """

    library: str
    engine: str | None
    is_its: Callable[[Settings], bool]
    keys: Mapping[str, Meaning]
    sections: frozenset[str]
    rest: str | None = "engine.overrides"
    resolvers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    whole: Callable[[Settings, str], Whole] | None = None
    recipe: Callable[[Settings], str] | None = None
    fits: Callable[[Collection[str]], bool] = lambda known: True

    def meaning(self, key: str) -> tuple[str, Meaning] | None:
        """The entry for a key or for a section around it, and its own key; None where there is none."""
        names = key.split(".")
        for length in range(len(names), 0, -1):
            prefix = ".".join(names[:length])
            if prefix in self.keys and (prefix == key or not callable(self.keys[prefix])):
                return prefix, self.keys[prefix]
        return None

    def knows(self, key: str) -> bool:
        """Whether a key is one of this library's."""
        return self.meaning(key) is not None or (self.rest is not None and key.split(".")[0] in self.sections)

    def settings(self, key: str, value: Any) -> Settings:
        """What a key and its value are in settings of ours; none where it has no effect.

        Raises:
            UserError: it cannot be obeyed.
        """
        found = self.meaning(key)
        if found is None and self.rest is None:
            known = [name for name in self.keys if "." not in name or "." in key]
            what = f"unknown key '{key}' in a file of {self.library}"
            raise UserError(what, did_you_mean(key, known, f"known here: {', '.join(sorted(known))}"))
        if found is None:
            return {f"{self.rest}.{key}": value}
        prefix, meaning = found
        if isinstance(meaning, str):
            return {f"{meaning}{key.removeprefix(prefix)}": value}
        if isinstance(meaning, NoEffect):
            return {}
        if isinstance(meaning, Refused):
            raise UserError(f"{key} is a key of {self.library}, and has no counterpart here", meaning.remedy)
        return self._meant(key, meaning, value)

    def ask(self, name: str, *about: Any, kind: type = object) -> Any:
        """What one of the functions says, which is other people's code.

        Raises:
            UserError: it fails, or gives something else.
        """
        remedy = "correct the package that brings the dialect, or uninstall it"
        try:
            found = getattr(self, name)(*about)
        except UserError:
            raise
        except Exception as error:
            what = f"the dialect of {self.library}: {name} fails: {type(error).__name__}: {error}"
            raise UserError(what, remedy) from error
        if not isinstance(found, kind):
            raise UserError(
                f"the dialect of {self.library}: {name} gives {shown(found)}, and no {kind.__name__}", remedy
            )
        return found

    def _meant(self, key: str, meaning: Callable[[Any], Settings], value: Any) -> Settings:
        """What a function of the table makes of a value, which it may not have been written for."""
        try:
            found = meaning(value)
        except UserError:
            raise
        except Exception as error:
            what = f"{key}: the dialect of {self.library} cannot read {shown(value)}: {type(error).__name__}: {error}"
            raise UserError(what, "give it a value as that library takes it") from error
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            what = f"{key}: the dialect of {self.library} gives {shown(found)}, which are no settings by their keys"
            raise UserError(what, "correct the package that brings the dialect")
        return found


def model_reference(value: Any) -> str:
    """How a model or tokenizer is named here: `org/name` of the hub with its scheme, a folder as it is.

    Where a folder `org` exists, a folder in it may be meant: what is wrong is said where the model is looked for.

    >>> model_reference("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), model_reference("/models/nano")
    ('hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16', '/models/nano')
    """
    text = str(value).strip()
    is_hub_id = text.count("/") == 1 and not text.startswith((".", "~", "/", "$")) and not Path(text).parent.is_dir()
    return f"hf://{text}" if is_hub_id else text


def only(*values: Any, remedy: str) -> Callable[[Any], Settings]:
    """A key that may only have the values that are fixed here."""

    def check(value: Any) -> Settings:
        if value not in values:
            raise UserError(f"the value {value!r} is not possible here", remedy)
        return {}

    return check


def owned(keys: Mapping[str, Meaning]) -> dict[str, str]:
    """Keys that `engine.overrides` may not repeat, because something of ours decides them, and what to do instead."""
    found = {}
    for key, meaning in keys.items():
        if isinstance(meaning, str):
            found[key] = f"set {meaning}"
        elif isinstance(meaning, NoEffect | Refused):
            found[key] = meaning.why if isinstance(meaning, NoEffect) else meaning.remedy
    return found


REGISTRY: Registry[Dialect] = Registry(
    "dialect", "nemotron.dialects", {}, lambda found: isinstance(found, Dialect), "a Dialect"
)


@cache
def dialects() -> tuple[Dialect, ...]:
    """Those of all installed packages."""
    return tuple(REGISTRY.load(name) for name in sorted(REGISTRY.places()))


def understanding(key: str, known: Collection[str], engine: str | None) -> list[Dialect]:
    """The libraries of a config, by its keys and its engine, that have such a key of their own."""
    return [one for one in dialects() if one.engine in (None, engine) and one.ask("fits", known) and one.knows(key)]


def said_in_ours(
    overrides: Sequence[str], known: Collection[str], engine: str | None
) -> tuple[list[str], dict[str, str], list[str]]:
    """Overrides with the keys of other libraries replaced by ours.

    Args:
        known: our dotted keys, as far as they are values.
        engine: the chosen engine, whose library's keys are understood.

    Returns:
        The overrides, their key for each of ours that was made from one, and what to say of those without effect.

    Raises:
        UserError: a key that cannot be obeyed, or one of a library that is not the chosen engine's.
    """
    said: list[str] = []
    theirs: dict[str, str] = {}
    notes: list[str] = []
    for override in overrides:
        left, equals, text = override.partition("=")
        key = left.lstrip("+~").strip()
        if (
            not equals
            or left.startswith("~")
            or key.startswith("run.")
            or any(key == one or key.startswith(f"{one}.") for one in known)
        ):
            said.append(override)
            continue
        understood = understanding(key, known, engine)
        if not understood:
            _refuse_other_library(key, text, known, engine)
            said.append(override)
            continue
        dialect = max(understood, key=lambda one: (one.meaning(key) is not None, one.engine is not None))
        found = dialect.meaning(key)
        if found is not None and isinstance(found[1], NoEffect):
            notes.append(f"{key} has no effect here: {found[1].why}")
        simple = found is None or isinstance(found[1], str)
        if not simple:
            require_plain_numbers(f"{COMMAND_LINE}: {key}", text)
        for ours, value in dialect.settings(key, text if simple else _value(text)).items():
            said.append(f"{'' if ours in known else '++'}{ours}={value if simple else json.dumps(value)}")
            theirs[ours] = key
    return said, theirs, notes


def _refuse_other_library(key: str, text: str, known: Collection[str], engine: str | None) -> None:
    sections = {one.split(".")[0] for one in known}
    for dialect in dialects():
        if dialect.meaning(key) is None or not dialect.ask("fits", known):
            continue
        settings = dialect.settings(key, _value(text))
        if not sections.issuperset(name.split(".")[0] for name in settings):
            continue  # it is about what this config does not do at all
        here = [f"{name}={json.dumps(said)}" for name, said in settings.items() if is_at(name, known)]
        remedies = [f"here it is {' '.join(here)}"] if here else [] if settings else ["leave it out"]
        raise UserError(
            f"command line: '{key}' is a key of {dialect.library}, and the engine here is '{engine}'",
            ", or ".join([*remedies, f"choose engine={dialect.engine}"]),
        )


def _value(text: str) -> Any:
    """The value of an override; a text that is no YAML is meant as it stands."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
