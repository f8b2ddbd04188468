"""A file of another library as a config of ours, built on one of the stage's own.

translated(Path("nemotron_automodel_insecure.yaml"), [Path("stages/sft/config")])
# Translated(text="defaults: [local, {override engine: automodel}, _self_]\n...", origins={...}, notes=[...])
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.config.dialects import Dialect, NoEffect, Settings, Whole, dialects
from nemotron_shared.config.expansion import bounded
from nemotron_shared.config.files import YAML_LOADER, read_text
from nemotron_shared.config.references import computing_with, value_at
from nemotron_shared.errors import UserError

NOTHING = object()
"""Equal to no value, null included."""


@dataclass(frozen=True)
class Translated:
    """A file of another library as a config of ours: its text, where each value comes from, and what to say of it."""

    text: str
    origins: dict[str, str]
    notes: list[str]


def translated(path: Path, config_dirs: Sequence[Path], family: str = "") -> Translated | None:
    """A config of another library, said in ours; None for one of ours.

    Args:
        config_dirs: where the configs lie that it may be built on.
        family: the one that it is used for, where that is known.

    Raises:
        UserError: it cannot be said in ours.
    """
    text = read_text(path)
    try:
        content = yaml.load(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError):
        return None  # the error is told where our own files are read
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
    """The config of ours below a file of a library: one of the same recipe; the family's, for what no engine decides.

    Raises:
        UserError: no config describes the recipe that the file leaves its values to.
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
    """The config that describes each recipe, by `engine.recipe` in it or in the engine's file of its name."""
    found: dict[str, str] = {}
    for name in config_names(config_dir):
        for file in (config_dir / f"{name}.yaml", config_dir / "engine" / f"{name}.yaml"):
            content = yaml.load(file.read_text(encoding="utf-8"), YAML_LOADER) if file.is_file() else {}
            if recipe := ((content or {}).get("engine") or {}).get("recipe"):
                found.setdefault(recipe, name)
    return found


def dialect_of(content: Any) -> Dialect | None:
    """Whose keys a file has at its top; None for one of ours, and for what is no mapping."""
    return next((one for one in dialects() if isinstance(content, dict) and one.ask("is_its", content)), None)


def translate(
    file: Path, content: dict[str, Any], dialect: Dialect, lines: Mapping[str, int], base: str = "local"
) -> Translated:
    """A file of a library, said in ours.

    Args:
        content: what is in it.
        lines: the line of each of its keys.
        base: the config of the stage that stands below it.

    Raises:
        UserError: a key that cannot be obeyed, two keys that contradict each other, or a reference that leads nowhere.
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
    tree: dict[str, Any] = {"defaults": list(defaults)}
    for key, value in sorted(values.items(), key=lambda item: item[0].split(".")[0]):
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    head = f"# Made from {file.name}, a config of {dialect.library}.\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def _entries(content: dict[str, Any], dialect: Dialect, above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values, a section as a whole where the dialect has an entry for it and for nothing in it."""
    for name, value in content.items():
        key = f"{above}{name}"
        divided = any(other.startswith(f"{key}.") for other in dialect.keys)
        found = dialect.meaning(key)
        if isinstance(value, dict) and value and (divided or found is None or callable(found[1])):
            yield from _entries(value, dialect, f"{key}.")
        else:
            yield key, value


def _resolved(file: Path, content: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The content with its references to its own keys filled in; what names our artifacts or variables stays.

    A reference to a section, or to what the file does not have, is kept for the library, which has its whole config.
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
    """The names of the configs in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def key_lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Dotted keys of a YAML document, and the line of each."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        yield key, key_node.start_mark.line + 1
        yield from key_lines(value_node, f"{key}.")
