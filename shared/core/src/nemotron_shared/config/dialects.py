"""Other projects' own configs and keys, said in ours.

    policy.dtensor_cfg.cpu_offload=true    ->  ++engine.overrides.policy.dtensor_cfg.cpu_offload=true
    step_scheduler.max_steps=400           ->  train.train_iters=400
    -c nemotron_automodel_insecure.yaml    ->  a config of ours, with a note of the line that each value is from

A dialect is a table of a library's keys. What one of our settings decides becomes that setting; what only the library
knows goes to the engine as it is; what has no meaning here is said in a line. A package adds one as an entry point of
the group `nemotron.dialects`.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.config.registry import Registry
from nemotron_shared.errors import UserError

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


Meaning = str | NoEffect | Refused | Callable[[Any], Settings]
"""Our key for a key of theirs, or what their value means in settings of ours."""


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
        whole: what a file says as a whole, by its content and name, such as which recipe it builds on; it wins over
            single keys.
        fits: whether the keys are about a config of ours, by its own keys.
    """

    library: str
    engine: str | None
    is_its: Callable[[Settings], bool]
    keys: Mapping[str, Meaning]
    sections: frozenset[str]
    rest: str | None = "engine.overrides"
    resolvers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    whole: Callable[[Settings, str], Settings] | None = None
    fits: Callable[[Collection[str]], bool] = lambda known: True

    def meaning(self, key: str) -> tuple[str, Meaning] | None:
        """The entry for a key or for a section around it, and its own key; None where there is none."""
        names = key.split(".")
        prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
        return next(((prefix, self.keys[prefix]) for prefix in prefixes if prefix in self.keys), None)

    def knows(self, key: str) -> bool:
        """Whether a key is one of this library's."""
        return self.meaning(key) is not None or (self.rest is not None and key.split(".")[0] in self.sections)

    def settings(self, key: str, value: Any) -> Settings:
        """What a key and its value are in settings of ours; none where it has no effect.

        Raises:
            UserError: it cannot be obeyed.
        """
        found = self.meaning(key)
        if found is None:
            return {f"{self.rest}.{key}": value}
        prefix, meaning = found
        if isinstance(meaning, str):
            return {f"{meaning}{key.removeprefix(prefix)}": value}
        if isinstance(meaning, NoEffect):
            return {}
        if isinstance(meaning, Refused):
            raise UserError(f"{key} is a key of {self.library}, and has no counterpart here", meaning.remedy)
        return meaning(value)


@dataclass(frozen=True)
class Translated:
    """A file of another library as a config of ours: its text, where each value comes from, and what to say of it."""

    text: str
    origins: dict[str, str]
    notes: list[str]


def model_reference(value: Any) -> str:
    """How a model or tokenizer is named here: `org/name` of the hub with its scheme, a folder as it is.

    >>> model_reference("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), model_reference("/models/nano")
    ('hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16', '/models/nano')
    """
    text = str(value).strip()
    is_hub_id = text.count("/") == 1 and not text.startswith((".", "~", "/", "$")) and not Path(text).exists()
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


REGISTRY: Registry[Dialect] = Registry("dialect", "nemotron.dialects", {})


@cache
def dialects() -> tuple[Dialect, ...]:
    """Those of all installed packages."""
    return tuple(REGISTRY.load(name) for name in sorted(REGISTRY.places()))


def dialect_of(content: Any) -> Dialect | None:
    """Whose keys a file has at its top; None for one of ours, and for what is no mapping."""
    return next((one for one in dialects() if isinstance(content, dict) and one.is_its(content)), None)


def translate(file: Path, content: dict[str, Any], dialect: Dialect, lines: Mapping[str, int]) -> Translated:
    """A file of a library, said in ours.

    Args:
        content: what is in it.
        lines: the line of each of its keys.

    Raises:
        UserError: a key that cannot be obeyed, or a reference that leads nowhere.
    """
    values: Settings = {}
    origins: dict[str, str] = {}
    notes = []
    readable = _resolved(file, content, dialect)
    for key, value in _entries(readable, dialect):
        found = dialect.meaning(key)
        if found is not None and isinstance(found[1], NoEffect):
            notes.append(f"{file.name}:{lines.get(key, 1)}: {key} has no effect here: {found[1].why}")
        try:
            settings = dialect.settings(key, value)
        except UserError as error:
            raise UserError(f"{file.name}:{lines.get(key, 1)}: {error.message}", error.remedy) from error
        values |= settings
        origins |= {ours: f"{file.name}:{lines.get(key, 1)} ({key})" for ours in settings}
    for ours, value in (dialect.whole(readable, file.name) if dialect.whole else {}).items():
        values[ours] = value
        origins.setdefault(ours, f"{file.name}:1")
    engine = [{"override engine": dialect.engine}] if dialect.engine else []
    tree: dict[str, Any] = {"defaults": ["local", *engine, "_self_"] if dialect.engine else ["default", "_self_"]}
    for key, value in sorted(values.items(), key=lambda item: item[0].split(".")[0]):
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    head = f"# Made from {file.name}, a config of {dialect.library}.\n"
    return Translated(head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120), origins, notes)


def _entries(content: dict[str, Any], dialect: Dialect, above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values, a section as a whole where the dialect has an entry for it and for nothing in it."""
    for name, value in content.items():
        key = f"{above}{name}"
        divided = any(other.startswith(f"{key}.") for other in dialect.keys)
        if isinstance(value, dict) and value and (divided or dialect.meaning(key) is None):
            yield from _entries(value, dialect, f"{key}.")
        else:
            yield key, value


def _resolved(file: Path, content: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The content with its references to its own keys filled in; what names our artifacts or variables stays.

    A reference to what the file does not have is kept for the library, whose whole config may have it.
    """
    for name, function in dialect.resolvers.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    tree = OmegaConf.create(content)

    def filled(node: Any, key: str) -> Any:
        if isinstance(node, dict):
            return {name: filled(child, f"{key}.{name}" if key else str(name)) for name, child in node.items()}
        if isinstance(node, list):
            return [filled(child, f"{key}[{number}]") for number, child in enumerate(node)]
        if not isinstance(node, str) or "${" not in node or "${oc." in node or "${art:" in node:
            return node
        try:
            return OmegaConf.select(tree, key, throw_on_missing=True)
        except OmegaConfBaseException:
            return node.replace("${", "\\${")

    try:
        return filled(content, "")
    finally:
        for name in dialect.resolvers:
            OmegaConf.clear_resolver(name)


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
            or left.startswith(("~", "run."))
            or any(key == one or key.startswith(f"{one}.") for one in known)
        ):
            said.append(override)
            continue
        understood = [one for one in dialects() if one.engine in (None, engine) and one.fits(known) and one.knows(key)]
        if not understood:
            _refuse_other_library(key, yaml.safe_load(text), engine)
            said.append(override)
            continue
        dialect = max(understood, key=lambda one: (one.meaning(key) is not None, one.engine is not None))
        found = dialect.meaning(key)
        if found is not None and isinstance(found[1], NoEffect):
            notes.append(f"{key} has no effect here: {found[1].why}")
        simple = found is None or isinstance(found[1], str)
        for ours, value in dialect.settings(key, text if simple else yaml.safe_load(text)).items():
            said.append(f"{'' if ours in known else '++'}{ours}={value if simple else json.dumps(value)}")
            theirs[ours] = key
    return said, theirs, notes


def _refuse_other_library(key: str, value: Any, engine: str | None) -> None:
    for dialect in dialects():
        if dialect.meaning(key) is None:
            continue
        ours = " ".join(f"{name}={json.dumps(said)}" for name, said in dialect.settings(key, value).items())
        raise UserError(
            f"command line: '{key}' is a key of {dialect.library}, and the engine here is '{engine}'",
            (f"here it is {ours}" if ours else "leave it out") + f", or choose engine={dialect.engine}",
        )
