"""Aliases of an artifact name, and which of its versions is `latest`.

aliases_of(shelf)                  {"best": 1}, from artifacts/super3-sft-model/aliases.json
latest_of(shelf, [1, 2])           2; or 1 if a later run reused it, from reused.json
"""

import os
from collections.abc import Sequence
from pathlib import Path

from nemotron_shared import atomic
from nemotron_shared.errors import UserError
from nemotron_shared.lock import locked

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
