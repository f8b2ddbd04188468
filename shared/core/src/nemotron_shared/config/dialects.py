"""Translate configs and keys of other projects into ours.

    policy.dtensor_cfg.cpu_offload=true    ->  ++engine.overrides.policy.dtensor_cfg.cpu_offload=true
    step_scheduler.max_steps=400           ->  train.train_iters=400
    -c nemotron_automodel_insecure.yaml    ->  a config of ours, noting the line each value came from

A dialect is a table of a library's keys. Keys that one of our settings controls become that setting; keys only the
library knows go to the engine unchanged; keys without a meaning here are reported in a note. A package adds a dialect
as an entry point in the group `nemotron.dialects`.
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
"""Our settings by dotted key."""


@dataclass(frozen=True)
class NoEffect:
    """An accepted key without effect; `why` explains what takes its place."""

    why: str


@dataclass(frozen=True)
class Refused:
    """A key that is not supported; `remedy` is what to write instead."""

    remedy: str


@dataclass(frozen=True)
class Whole:
    """The meaning of a file as a whole.

    Attributes:
        settings: our settings.
        notes: what users should know about them.
        taken: keys that only have a meaning in combination, each with the setting it became; None if it became
            nothing, which a note reports.
    """

    settings: Settings
    notes: Sequence[str] = ()
    taken: Mapping[str, str | None] = field(default_factory=dict)


Meaning = str | NoEffect | Refused | Callable[[Any], Settings]
"""Our key for a key of theirs, or a function from their value to our settings, for that key only."""


@dataclass(frozen=True)
class Dialect:
    """The keys of one library.

    Attributes:
        library: its name, for messages.
        engine: the name for `engine=`; None for keys that work with any engine.
        is_its: whether a file's content belongs to this library.
        keys: meaning of each key; a section's key covers everything in it.
        rest: prefix for all other keys; None makes them unknown.
        sections: sections of the library's config, by which its keys are recognised.
        resolvers: functions its files may compute with.
        whole: meaning of a file as a whole, from its content and name: the recipe it builds on, and the library's
            defaults for what the file leaves out. Takes precedence over single keys.
        recipe: the library's recipe that a file leaves its defaults to, as in `engine.recipe`. The file is then built
            on our config for the same recipe.
        fits: whether the library's keys apply to a config of ours, given its keys.
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
        """The entry for a key or a section around it, with the entry's own key; None without an entry."""
        names = key.split(".")
        for length in range(len(names), 0, -1):
            prefix = ".".join(names[:length])
            if prefix in self.keys and (prefix == key or not callable(self.keys[prefix])):
                return prefix, self.keys[prefix]
        return None

    def knows(self, key: str) -> bool:
        """Whether the key is one of this library's."""
        return self.meaning(key) is not None or (self.rest is not None and key.split(".")[0] in self.sections)

    def settings(self, key: str, value: Any) -> Settings:
        """Translate a key and its value into our settings; none if it has no effect.

        Raises:
            UserError: the key or value is not supported.
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
    """Our reference for a model or tokenizer: `org/name` gets the hub's scheme, a folder stays as it is.

    If a folder `org` exists, a folder in it may be meant; errors are left to the code that looks for the model.

    >>> model_reference("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), model_reference("/models/nano")
    ('hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16', '/models/nano')
    """
    text = str(value).strip()
    is_hub_id = text.count("/") == 1 and not text.startswith((".", "~", "/", "$")) and not Path(text).parent.is_dir()
    return f"hf://{text}" if is_hub_id else text


def only(*values: Any, remedy: str) -> Callable[[Any], Settings]:
    """A key that accepts only the values that are fixed here."""

    def check(value: Any) -> Settings:
        if value not in values:
            raise UserError(f"the value {value!r} is not possible here", remedy)
        return {}

    return check


def owned(keys: Mapping[str, Meaning]) -> dict[str, str]:
    """Keys that `engine.overrides` may not set, because one of our settings does, with what to do instead."""
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
    """Dialects of all installed packages."""
    return tuple(REGISTRY.load(name) for name in sorted(REGISTRY.places()))


def understanding(key: str, known: Collection[str], engine: str | None) -> list[Dialect]:
    """Dialects that apply to a config, by its keys and engine, and know the key."""
    return [one for one in dialects() if one.engine in (None, engine) and one.ask("fits", known) and one.knows(key)]


def said_in_ours(
    overrides: Sequence[str], known: Collection[str], engine: str | None
) -> tuple[list[str], dict[str, str], list[str]]:
    """Replace other libraries' keys in overrides by ours.

    Args:
        known: our dotted keys that hold values.
        engine: the chosen engine, whose library's keys are understood.

    Returns:
        The overrides, the original key for each translated one, and notes on keys without effect.

    Raises:
        UserError: a key that is not supported, or one of a library other than the chosen engine's.
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
            continue  # it concerns something this config does not do at all
        here = [f"{name}={json.dumps(said)}" for name, said in settings.items() if is_at(name, known)]
        remedies = [f"here it is {' '.join(here)}"] if here else [] if settings else ["leave it out"]
        raise UserError(
            f"command line: '{key}' is a key of {dialect.library}, and the engine here is '{engine}'",
            ", or ".join([*remedies, f"choose engine={dialect.engine}"]),
        )


def _value(text: str) -> Any:
    """Parse an override's value as YAML, or take the text itself if it is invalid."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
