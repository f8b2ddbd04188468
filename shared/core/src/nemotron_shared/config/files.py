"""Read users' YAML files, refusing those beyond any hand-written size; and write the configs that we choose.

    content = parsed(path, read_text(path))
    write_choices(file, "local", [Choice("data_prep.pack_size", 256, "the longest conversation has 212 tokens")])

With aliases, a file of a few hundred bytes can expand to billions of values, and endlessly nested brackets crash the C
parser; so we count a file's events before building anything from them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import UserError

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
YAML_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's if PyYAML was built with it: ten times as fast."""
LARGEST = 1_000_000
MOST_VALUES = 20_000
DEEPEST = 50
OTHER_NUMBER = re.compile(r"(?<![\w.:])[-+]?(?:0[0-7_]+|[1-9][\d_]*(?::[0-5]?\d)+(?:\.[\d_]*)?)(?![\w.:])")
"""What YAML 1.1 reads as an octal or a base-60 number."""
REMEDY = "a config is what people write: put long lists into a file of their own, which the config names"


def read_text(path: Path) -> str:
    """Read a YAML file and check its size; syntax errors are left to the parser.

    Raises:
        UserError: unreadable, too large, too deep, or an alias contains itself.
    """
    try:
        if not path.is_file():
            raise UserError(f"{path}: no such file, or not a regular one", "give the path of a YAML file")
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: larger than {LARGEST:,} bytes", REMEDY)
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text in UTF-8: {error}", "save it in UTF-8") from error
    except OSError as error:
        raise UserError(f"{str(path)[:200]}: not readable: {error.strerror}", "give the path of a YAML file") from error
    require_bounded(path, text)
    require_plain_numbers(str(path), text)
    return text


def require_bounded(path: Path, text: str) -> None:
    """Refuse a text that expands to more than a hand-written file would; syntax errors are left to the parser.

    Raises:
        UserError: too large, too deep, or an alias contains itself.
    """
    if len(text) > LARGEST:
        raise UserError(f"{path}: larger than {LARGEST:,} characters", REMEDY)
    with suppress(yaml.YAMLError):
        _count(path, text)


def require_plain_numbers(where: str, text: str) -> None:
    """Refuse numbers that YAML reads differently than people do: 010 becomes 8, and 1:30 becomes 90.

    Args:
        where: the file, or another source of the text.

    Raises:
        UserError: with the line number if there are several lines.
    """
    if not OTHER_NUMBER.search(text):
        return
    with suppress(yaml.YAMLError):  # reported by the parser
        for event in yaml.parse(text, YAML_LOADER):
            plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            if not plain or not OTHER_NUMBER.fullmatch(event.value):
                continue
            number = yaml.load(event.value, YAML_LOADER)
            meant = None if ":" in event.value else int(event.value.replace("_", ""))
            if number != meant:
                line = f":{event.start_mark.line + 1}" if "\n" in text else ""
                either = f"{number}, if that is what you mean" if meant is None else f"{meant} or {number}"
                remedy = f"write {either}; a text stands in quotes: '{event.value}'"
                raise UserError(f"{where}{line}: {event.value} is the number {number} in YAML", remedy)


def parsed(path: Path, text: str) -> Any:
    """Parse a YAML file's text.

    Raises:
        UserError: not valid YAML.
    """
    try:
        return yaml.load(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: numbers of thousands of digits, dates
        raise UserError(f"{path}: not valid YAML: {error}", "correct the file") from error


def require_defaults(path: Path) -> None:
    """Require that a user's own config builds on one of the stage's, unless it is complete, including the family.

    Raises:
        UserError: it is neither.
    """
    content = parsed(path, read_text(path))
    run = content.get("run") if isinstance(content, dict) else None
    is_whole = isinstance(run, dict) and "family" in run
    if content is None or (isinstance(content, dict) and not content.get("defaults") and not is_whole):
        what = f"{path}: {'empty' if content is None else 'builds on no config'}: it has no 'defaults:'"
        remedy = (
            "begin it with the config that it builds on, and then itself:\n  defaults:\n    - default\n    - _self_"
        )
        raise UserError(what, remedy)


def require_composable(file: Path) -> None:
    """Refuse a file that is not safe to compose: too large, or with `defaults` that contain interpolations.

    Raises:
        UserError: too large, too deep, an alias contains itself, or an interpolation in its defaults.
    """
    text, content = read_text(file), None
    with suppress(yaml.YAMLError, ValueError, RecursionError):  # reported when the files are composed
        content = yaml.load(text, YAML_LOADER)
    defaults = content.get("defaults") if isinstance(content, dict) else None
    if isinstance(defaults, list) and any("${" in str(entry) for entry in defaults):
        remedy = "write the names of the files that it builds on"
        raise UserError(f"{file}: defaults: '${{' cannot stand in a name of a file", remedy)


def _count(path: Path, text: str) -> None:
    """Count the values a file expands to, each alias as often as it is used."""
    total, sizes, within = 0, {}, []
    for event in yaml.parse(text, YAML_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in within):
                raise UserError(f"{path}: '&{event.anchor}' contains itself", "take its alias out of it")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1 + event.value.count("${")  # a reference takes as long to read as a value
            total += sizes[event.anchor]
        if total > MOST_VALUES or len(within) > DEEPEST:
            what = f"more than {MOST_VALUES:,} values" if total > MOST_VALUES else f"more than {DEEPEST} levels"
            raise UserError(f"{path}: {what}, with its aliases and references", REMEDY)


@dataclass(frozen=True)
class Choice:
    """A dotted key, its value, and the reason for it."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={json.dumps(self.value)}  ({self.why})"


def write_choices(file: Path, base: str, choices: Iterable[Choice], given: Mapping[str, Any]) -> None:
    """Write a config over `base` with the chosen settings, and their reasons in a comment at the top.

    Args:
        given: settings that did not have to be chosen, by dotted key.
    """
    chosen = list(choices)
    values: dict[str, Any] = {}
    for key, value in [*given.items(), *((choice.key, choice.value) for choice in chosen)]:
        *sections, name = key.split(".")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    reasons = "".join(f"#   {choice}\n" for choice in chosen)
    body = yaml.safe_dump({"defaults": [base, "_self_"], **values}, sort_keys=False, allow_unicode=True)
    write_text(
        file, f"# Chosen once, and used by every later run. Change a value here, or delete the file.\n{reasons}{body}"
    )
