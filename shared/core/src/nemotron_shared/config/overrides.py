"""Overrides of settings, from the command line or from another program: `train.train_iters=5`."""

import re
from collections.abc import Sequence
from pathlib import Path

from nemotron_shared.errors import UserError

COMMAND_LINE = "command line"
PLAIN = re.compile(r"[/.]*[A-Za-z][\w./:@-]*", re.ASCII)
OTHER_VALUES = ("null", "true", "false", "nan", "inf")


class Said(str):
    """An override that did not come from the command line, but from a machine's profile, say."""

    origin: str

    def __new__(cls, text: str, origin: str) -> "Said":
        """Build it; `origin` names its source in messages."""
        said = super().__new__(cls, text)
        said.origin = origin
        return said


def override(key: str, value: str | Sequence[str]) -> str:
    """`key=value` or `key=[one,'and two']`, quoted for Hydra's grammar where necessary."""
    if not isinstance(value, str):
        return f"{key}=[{','.join(map(quoted, value))}]"
    return f"{key}={quoted(value)}"


def override_key(override: str) -> str:
    """The dotted key of an override, without its `+`, `++` or `~`."""
    return override.partition("=")[0].lstrip("+~").strip()


def require_key(override: str) -> None:
    """Refuse an override without a key: `=5`.

    Raises:
        UserError: with the override.
    """
    if not override_key(override):
        raise UserError(f"{who_says(override, None)}: '{override}' names no setting", "write key=value")


def who_says(override: str, theirs: str | None) -> str:
    """The origin of an override.

    Args:
        theirs: another library's key that it was translated from.
    """
    who = override.origin if isinstance(override, Said) else COMMAND_LINE
    return f"{who} ({theirs})" if theirs else who


def is_group(override: str, folders: Sequence[Path]) -> bool:
    """Whether an override chooses a file of a group, such as `engine=transformers`."""
    return any((folder / override_key(override)).is_dir() for folder in folders)


def quoted(text: str) -> str:
    """Quote a text unless it can only be read as itself; backslashes are literal unless a quote follows."""
    if PLAIN.fullmatch(text) and text.lower() not in OTHER_VALUES:
        return text
    return "'" + re.sub(r"(\\*)('|$)", lambda end: end[1] * 2 + end[2].replace("'", "\\'"), text) + "'"
