"""Translate another library's config file into one of ours, built on one of the stage's configs.

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
from nemotron_shared.config.keys import nested
from nemotron_shared.config.references import computing_with, value_at
from nemotron_shared.errors import UserError

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
