"""Parse the ways to refer to an artifact into its full name and version.

    super3-sft-model  super3-sft-model:latest   the newest version, or the one reused last
    super3-sft-model:v2  :2  art://...:v2       version 2
    super3-sft-model:best                       the version the alias `best` points to
    sft:v2  sft-data                            short for super3-sft-model:v2, super3-sft-data
    super3/sft/model:v2                         slashes for dashes
    ModelArtifact-sft  SFTDataArtifact-sft      class names, as in older configs

The caller gives the family (`super3`) for short forms and class names.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.stages import DEFAULT_FAMILY, STAGES, products
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.system.lock import locked

LATEST = "latest"
SCHEME = "art://"
LONGEST_SHOWN = 200
"""Characters of a user's word repeated in messages."""
MOST_SHOWN = 10
"""Versions, aliases or names listed in a message."""
WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
NUMBER = re.compile(r"v?([1-9][0-9]{0,8})")
EXACT = re.compile(rf"({WORD.pattern}):v([1-9][0-9]{{0,8}})")
RESERVED_ALIAS = re.compile(r"latest|v?[0-9]+")
EXAMPLE = "write NAME or NAME:VERSION, for example super3-sft-model:v2, sft:latest or sft-data:best"

# The full name after the family, by full name or short form.
SHORT_NAMES = {stage.name: stage.result.kind for stage in STAGES.values()} | {
    made.kind: made.kind for made in products()
}
CLASS_NAMES = {name: made.kind for made in products() for name in made.class_names}


@dataclass(frozen=True)
class Reference:
    """A full artifact name, and its version: a number, `latest`, or an alias."""

    name: str
    version: int | str = LATEST

    def __str__(self) -> str:
        return f"{self.name}:v{self.version}" if isinstance(self.version, int) else f"{self.name}:{self.version}"


def parse_reference(text: str, family: str = DEFAULT_FAMILY) -> Reference:
    """Parse any of the forms above, without checking that the artifact exists."""
    name, colon, version = text.removeprefix(SCHEME).partition(":")
    if name in CLASS_NAMES:
        name = CLASS_NAMES[name]
    elif all(WORD.fullmatch(part) for part in name.split("/")):
        name = name.replace("/", "-")
    else:
        small = name.lower()
        near = f"did you mean '{small}'?" if small in SHORT_NAMES else did_you_mean(name, CLASS_NAMES, EXAMPLE)
        raise UserError(f"'{text[:LONGEST_SHOWN]}' is not an artifact reference", near)
    name = f"{family}-{SHORT_NAMES[name]}" if name in SHORT_NAMES else name
    check_name(name)
    if not colon or version == LATEST:
        return Reference(name)
    if number := NUMBER.fullmatch(version):
        return Reference(name, int(number[1]))
    if RESERVED_ALIAS.fullmatch(version) or not WORD.fullmatch(version):
        raise UserError(
            f"'{text[:LONGEST_SHOWN]}': '{version[:LONGEST_SHOWN]}' is not a version",
            "write latest, v1, v2, ..., or an alias such as best",
        )
    return Reference(name, version)


def prefix_of(name: str) -> str | None:
    """`qwen3` of `qwen3-sft-model`; None for the name of an artifact that no step makes."""
    kinds = (f"-{made.kind}" for made in products())
    return next((name.removesuffix(kind) for kind in kinds if name.endswith(kind) and name != kind), None)


def parse_exact(text: str) -> Reference | None:
    """Parse `name:v3` as recorded in manifests; None for anything else."""
    found = EXACT.fullmatch(text)
    return Reference(found[1], int(found[2])) if found else None


def is_path(text: str) -> bool:
    """Whether `text` is a path rather than a name: it starts with `/`, `./`, `../` or `~`."""
    return text in {".", ".."} or text.startswith(("/", "./", "../", "~"))


def few(words: Sequence[str]) -> str:
    """A short list in full, or both ends of a long one."""
    if len(words) <= MOST_SHOWN:
        return ", ".join(words)
    return f"{', '.join(words[:3])}, ..., {', '.join(words[-3:])} ({len(words):,} in all)"


def check_name(name: str) -> None:
    """Refuse an invalid artifact name."""
    if not WORD.fullmatch(name):
        raise UserError(
            f"'{name[:LONGEST_SHOWN]}' is not an artifact name",
            "use a-z, 0-9, '.', '_' and '-', for example super3-sft-model",
        )


def check_alias(alias: str) -> None:
    """Refuse an alias that looks like a version or cannot be written in a reference."""
    if RESERVED_ALIAS.fullmatch(alias):
        raise UserError(f"'{alias}' cannot be an alias: versions are named so", "choose a word such as 'best'")
    if not WORD.fullmatch(alias):
        raise UserError(
            f"'{alias}' is not an alias", "use a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        )


ALIASES = "aliases.json"
REUSED = "reused.json"
ALIAS_LOCK = ".aliases.lock"


def aliases_of(shelf: Path) -> dict[str, int]:
    """Aliases of an artifact name, with their versions."""
    path = f"{shelf}/{ALIASES}"
    remedy = "correct the file, or delete it: its aliases are lost then"
    aliases = atomic.read_json(Path(path), remedy) if os.path.isfile(path) else {}  # noqa: PTH113 - see `is_version`
    if not isinstance(aliases, dict) or not all(type(number) is int for number in aliases.values()):
        raise UserError(f'{path}: not of the form {{"alias": 1}}', remedy)
    return aliases


def set_alias(shelf: Path, alias: str, version: int) -> None:
    """Point an alias to this version."""
    with locked(shelf / ALIAS_LOCK, wait=True):
        atomic.write_json(shelf / ALIASES, aliases_of(shelf) | {alias: version})


def drop_aliases(shelf: Path, version: int) -> list[str]:
    """Remove a version's aliases, and return them."""
    if version not in aliases_of(shelf).values():
        return []
    with locked(shelf / ALIAS_LOCK, wait=True):
        aliases = aliases_of(shelf)
        dropped = [alias for alias, number in aliases.items() if number == version]
        atomic.write_json(shelf / ALIASES, {key: aliases[key] for key in aliases if key not in dropped})
    return dropped


def use_again(shelf: Path, version: int, newest: int) -> None:
    """Make this version `latest` until one newer than `newest` is published."""
    atomic.write_json(shelf / REUSED, {"version": version, "newest": newest})


def latest_of(shelf: Path, versions: Sequence[int]) -> int:
    """The newest version, or the older one that was reused last."""
    path = f"{shelf}/{REUSED}"
    remedy = f"delete it: rm {path}"
    reused = atomic.read_json(Path(path), remedy) if os.path.isfile(path) else {}  # noqa: PTH113 - see `is_version`
    if not isinstance(reused, dict):
        raise UserError(f'{path}: not of the form {{"version": 1, "newest": 2}}', remedy)
    newest, again = versions[-1], reused.get("version")
    return again if type(again) is int and again in versions and reused.get("newest") == newest else newest
