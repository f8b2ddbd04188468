"""Overrides of settings, as the command line and one program for another write them: `train.train_iters=5`."""

import re
from collections.abc import Sequence
from pathlib import Path

from nemotron_shared.errors import UserError

COMMAND_LINE = "command line"
PLAIN = re.compile(r"[/.]*[A-Za-z][\w./:@-]*", re.ASCII)
OTHER_VALUES = ("null", "true", "false", "nan", "inf")


class Said(str):
    """An override that somebody else than the command line says, such as a file about the machine."""

    origin: str

    def __new__(cls, text: str, origin: str) -> "Said":
        """Args: origin: who says it, for people."""
        said = super().__new__(cls, text)
        said.origin = origin
        return said


def override(key: str, value: str | Sequence[str]) -> str:
    """`key=value`, or `key=[one,'and two']`, in the quotes of Hydra's grammar where a text needs them."""
    if not isinstance(value, str):
        return f"{key}=[{','.join(map(quoted, value))}]"
    return f"{key}={quoted(value)}"


def override_key(override: str) -> str:
    """The dotted key that an override touches, without its `+`, `++` or `~`."""
    return override.partition("=")[0].lstrip("+~").strip()


def require_key(override: str) -> None:
    """Refuse an override that sets nothing: `=5`.

    Raises:
        UserError: naming it.
    """
    if not override_key(override):
        raise UserError(f"{who_says(override, None)}: '{override}' names no setting", "write key=value")


def who_says(override: str, theirs: str | None) -> str:
    """Where an override comes from.

    Args:
        theirs: the key of another library that was written.
    """
    who = override.origin if isinstance(override, Said) else COMMAND_LINE
    return f"{who} ({theirs})" if theirs else who


def is_group(override: str, folders: Sequence[Path]) -> bool:
    """Whether an override chooses a whole file of a group, such as `engine=transformers`."""
    return any((folder / override_key(override)).is_dir() for folder in folders)


def quoted(text: str) -> str:
    """In quotes, unless it can only be read as itself; a backslash stands for itself, unless a quote follows."""
    if PLAIN.fullmatch(text) and text.lower() not in OTHER_VALUES:
        return text
    return "'" + re.sub(r"(\\*)('|$)", lambda end: end[1] * 2 + end[2].replace("'", "\\'"), text) + "'"
