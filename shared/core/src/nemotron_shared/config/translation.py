"""Translate configs and keys of other projects into ours.

    policy.dtensor_cfg.cpu_offload=true    ->  ++engine.overrides.policy.dtensor_cfg.cpu_offload=true
    step_scheduler.max_steps=400           ->  train.train_iters=400
    -c nemotron_automodel_insecure.yaml    ->  a config of ours, noting the line each value came from

A dialect is a table of a library's keys. Keys that one of our settings controls become that setting; keys only the
library knows go to the engine unchanged; keys without a meaning here are reported in a note. A package adds a dialect
as an entry point in the group `nemotron.dialects`.
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

from nemotron_shared.config.files import YAML_LOADER, read_text, require_plain_numbers
from nemotron_shared.config.overrides import COMMAND_LINE, is_at, nested
from nemotron_shared.config.references import bounded, computing_with, value_at
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.system.errors import UserError, did_you_mean

Settings = dict[str, Any]
"""Our settings by dotted key."""


@dataclass(frozen=True)
class NoEffect:
    """An accepted key without effect; `why` explains what takes its place."""

    why: str


@dataclass(frozen=True)
class Refused:
    """A key that is not supported, and what to write instead."""

    instead: str


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
            raise UserError(f"{key} is a key of {self.library}, and has no counterpart here", meaning.instead)
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
            raise UserError(what, "use a value that the library accepts") from error
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            what = f"{key}: the dialect of {self.library} returned {shown(found)} instead of a mapping of settings"
            raise UserError(what, "fix the package that provides the dialect")
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
            found[key] = meaning.why if isinstance(meaning, NoEffect) else meaning.instead
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
        settings = dialect.settings(key, text if simple else _value(text))
        if dialect.engine is None and not all(is_at(ours, known) for ours in settings):
            said.append(override)  # what it means is not a setting of this stage
            continue
        for ours, value in settings.items():
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


NOTHING = object()
"""Unequal to every value, including null."""


@dataclass(frozen=True)
class Translated:
    """A translated config: its text, the origin of each value, and notes for the user."""

    text: str
    origins: dict[str, str]
    notes: list[str]


def translated(path: Path, config_dirs: Sequence[Path], family: str = "") -> Translated | None:
    """Translate another library's config; None for one of ours.

    Args:
        config_dirs: folders of the configs it may be built on.
        family: the family it is used for, if known.

    Raises:
        UserError: it cannot be translated.
    """
    text = read_text(path)
    try:
        content = yaml.load(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError):
        return None  # reported when it is read as one of ours
    dialect = dialect_of(content)
    if dialect is None:
        return None
    lines = dict(key_lines(yaml.compose(text, YAML_LOADER), ""))
    try:
        return translate(path, content, dialect, lines, _base(content, dialect, config_dirs, family))
    except UserError as error:
        what = error.message if error.message.startswith(path.name) else f"{path.name}: {error.message}"
        raise UserError(what, error.remedy) from error


def _base(content: Any, dialect: Dialect, config_dirs: Sequence[Path], family: str) -> str:
    """The config of ours to build on: one for the same recipe; the family's, if the library is not an engine.

    Raises:
        UserError: no config matches the recipe that provides the file's defaults.
    """
    if dialect.engine is None:
        names = {name for folder in config_dirs for name in config_names(folder)}
        return family if family in names else "default"
    if dialect.recipe is None:
        return "local"
    wanted = dialect.ask("recipe", content, kind=str)
    known = {recipe: name for folder in config_dirs for recipe, name in _described(folder).items()}
    same = {recipe.rpartition(".")[2]: name for recipe, name in known.items()}
    if name := same.get(wanted.rpartition(".")[2]):
        return name
    remedy = (
        f"known here: {', '.join(sorted(known))}. For another, write a config of ours with engine.recipe, its layout, "
        f"optimizer and scheduler, that begins: defaults: [local, {{override engine: {dialect.engine}}}, _self_]"
    )
    what = f"no config here says what {dialect.library}'s recipe '{wanted}' takes where the file is silent"
    raise UserError(what, remedy)


def _described(config_dir: Path) -> dict[str, str]:
    """The config for each recipe, by `engine.recipe` in it or in the engine file of the same name."""
    found: dict[str, str] = {}
    for name in config_names(config_dir):
        for file in (config_dir / f"{name}.yaml", config_dir / "engine" / f"{name}.yaml"):
            content = yaml.load(file.read_text(encoding="utf-8"), YAML_LOADER) if file.is_file() else {}
            if recipe := ((content or {}).get("engine") or {}).get("recipe"):
                found.setdefault(recipe, name)
    return found


def dialect_of(content: Any) -> Dialect | None:
    """The dialect of a file, by its top-level keys; None for our own configs and anything but a mapping."""
    return next((one for one in dialects() if isinstance(content, dict) and one.ask("is_its", content)), None)


def translate(
    file: Path, content: dict[str, Any], dialect: Dialect, lines: Mapping[str, int], base: str = "local"
) -> Translated:
    """Translate a parsed file of a library.

    Args:
        content: its parsed content.
        lines: line number of each key.
        base: the stage's config to build on.

    Raises:
        UserError: a key that is not supported, two keys that contradict each other, or a broken reference.
    """
    readable = _resolved(file, content, dialect)
    whole = dialect.ask("whole", readable, file.name, kind=Whole) if dialect.whole else Whole({})
    values: Settings = {}
    said_by: dict[str, str] = {}
    notes, nothing_new = [], []

    def place(key: str) -> str:
        return f"{file.name}:{lines.get(key, 1)}"

    for key, value in _entries(readable, dialect):
        found = dialect.meaning(key)
        if key in whole.taken:
            ours = whole.taken[key]
            if ours is not None and said_by.setdefault(ours, key) != key:
                nothing_new.append(f"{key} (line {lines.get(key, 1)})")
            continue
        if found is not None and isinstance(found[1], NoEffect):
            notes.append(f"{place(key)}: {key} has no effect here: {found[1].why}")
            continue
        try:
            settings = dialect.settings(key, value)
        except UserError as error:
            raise UserError(f"{place(key)}: {error.message}", error.remedy) from error
        if all(values.get(ours, NOTHING) == said for ours, said in settings.items()):
            nothing_new.append(f"{key} (line {lines.get(key, 1)})")
            continue
        for ours, said in settings.items():
            final = whole.settings.get(ours, said)
            if final != said:
                notes.append(f"{place(key)}: {key} has no effect here: {ours} is {final}")
                continue
            if ours not in whole.settings and values.get(ours, said) != said:
                what = f"{key} and {said_by[ours]} (line {lines.get(said_by[ours], 1)}) both say what {ours} is here"
                raise UserError(f"{place(key)}: {what}: {said!r} and {values[ours]!r}", "leave one of them out")
            values[ours] = final
            said_by.setdefault(ours, key)
    origins = {ours: f"{place(key)} ({key})" for ours, key in said_by.items()}
    origins |= {ours: f"{file.name}:1" for ours in whole.settings if ours not in origins}
    if nothing_new:
        notes.append(f"{file.name}: these keys say nothing new here: {', '.join(nothing_new)}")
    notes += [f"{file.name}: {note}" for note in whole.notes]
    engine = [{"override engine": dialect.engine}] if dialect.engine and base == "local" else []
    return Translated(_text(file, dialect, [base, *engine, "_self_"], values | whole.settings), origins, notes)


def _text(file: Path, dialect: Dialect, defaults: Sequence[Any], values: Settings) -> str:
    by_section = sorted(values.items(), key=lambda item: item[0].split(".")[0])
    tree = {"defaults": list(defaults), **nested(dict(by_section))}
    head = f"# Made from {file.name}, a config of {dialect.library}.\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def _entries(content: dict[str, Any], dialect: Dialect, above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values; a section counts as one if the dialect has an entry for it and none for keys inside it."""
    for name, value in content.items():
        key = f"{above}{name}"
        divided = any(other.startswith(f"{key}.") for other in dialect.keys)
        found = dialect.meaning(key)
        if isinstance(value, dict) and value and (divided or found is None or callable(found[1])):
            yield from _entries(value, dialect, f"{key}.")
        else:
            yield key, value


def _resolved(file: Path, content: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Resolve a file's references to its own keys; those to our artifacts or to variables stay.

    References to a section, or to keys the file lacks, are kept for the library, which has its complete config.
    """
    tree = OmegaConf.create(content)

    def filled(node: Any, key: str) -> Any:
        if isinstance(node, dict):
            return {name: filled(child, f"{key}.{name}" if key else str(name)) for name, child in node.items()}
        if isinstance(node, list):
            return [filled(child, f"{key}[{number}]") for number, child in enumerate(node)]
        if not isinstance(node, str) or "${" not in node or "${oc." in node or "${art:" in node:
            return node
        try:
            found = value_at(tree, key)
        except OmegaConfBaseException:
            found = None
        return node.replace("${", "\\${") if found is None or isinstance(found, dict | list) else found

    with computing_with(dialect.resolvers), bounded():
        return filled(content, "")


def config_names(folder: Path) -> list[str]:
    """Names of the configs in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def key_lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Dotted keys of a YAML document, with their line numbers."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        yield key, key_node.start_mark.line + 1
        yield from key_lines(value_node, f"{key}.")
