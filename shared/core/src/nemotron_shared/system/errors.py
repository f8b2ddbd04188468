"""What is wrong, where, and what to do about it: findings, and the error that carries one.

    yield problem("8 rows per step are not a multiple of 3", "change the batch", "train.global_batch_size")
    yield lacking("engine 'automodel' needs the package nemo-automodel", "nemotron engine install automodel")
    yield note("[super3-pretrain-model:latest] not there: starting from random weights")

A check is a function that yields findings and changes nothing. Code that cannot continue raises a `UserError`, which a
program shows as one message:

    error: tiny.yaml: unknown key 'train.train_iter'
      did you mean 'train.train_iters'?
"""

import difflib
import errno
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["problem", "lacking", "warning", "note", "passed", "skipped"]
LONGEST_LINE = 1500


@dataclass(frozen=True)
class Finding:
    """A finding, for people and for programs.

    Attributes:
        level: a `problem` prevents the work on any machine; something `lacking` prevents it on this one; with a
            `warning` it works, but not as one would expect; a `note` prevents nothing. A check that looks at one thing
            may also say that it `passed`, or was `skipped`.
        remedy: what to do about it.
        key: the setting at fault, if there is one.
        pending: an earlier step makes it, or a variable of the shell gives it, before a job is submitted.
    """

    level: Level
    message: str
    remedy: str | None = None
    key: str | None = None
    pending: bool = False

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n  {self.remedy}"


def problem(message: str, remedy: str | None = None, key: str | None = None) -> Finding:
    """A reason why something cannot work, on any machine."""
    return Finding("problem", bounded(message), None if remedy is None else bounded(remedy), key)


def lacking(message: str, remedy: str | None = None, key: str | None = None) -> Finding:
    """Something that this machine does not have: packages, processes, GPUs, memory, disk."""
    return Finding("lacking", bounded(message), None if remedy is None else bounded(remedy), key)


def pending(finding: Finding) -> Finding:
    """The same, to be settled before a job is submitted: it prevents a start, but not a look at the job."""
    return replace(finding, pending=True)


def note(message: str, key: str | None = None) -> Finding:
    """Something that people should know, and that prevents nothing."""
    return Finding("note", message, key=key)


def bounded(text: str) -> str:
    """Shorten each line for the terminal: it may repeat a value of any length from a file."""
    return "\n".join(map(_bounded, text.split("\n")))


def _bounded(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} ... ({len(line) - LONGEST_LINE:,} characters left out) ... {line[-half:]}"


def of_level(level: Level, findings: Iterable[Finding]) -> list[Finding]:
    """Those of one level."""
    return [finding for finding in findings if finding.level == level]


def refused(findings: Iterable[Finding]) -> list[Finding]:
    """All that prevent the work here: problems, then what is lacking."""
    found = list(findings)
    return of_level("problem", found) + of_level("lacking", found)


class UserError(Exception):
    """An error the user can fix. Shown as one message, without a traceback.

    Attributes:
        finding: what is wrong, and what to do.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str | None = None, key: str | None = None) -> None:
        self.finding = problem(message, remedy, key)
        super().__init__(self.finding.message)

    def __str__(self) -> str:
        return str(self.finding)

    @property
    def message(self) -> str:
        """What is wrong, and where."""
        return self.finding.message

    @property
    def remedy(self) -> str | None:
        """What to do about it."""
        return self.finding.remedy


class NotFound(UserError):
    """The named thing does not exist, as opposed to: it exists and is damaged."""


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A remedy naming the closest of `known`, or `otherwise` if none is close."""
    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else otherwise


def how_to_add(*packages: str) -> str:
    """A remedy: the command that installs optional packages into this process's environment."""
    return f"add it to this environment: uv pip install --python {sys.executable} {' '.join(packages)}"


DISK_REMEDIES = (
    ((errno.EACCES, errno.EPERM, errno.EROFS), "check its permissions, or name another place"),
    ((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free space there and run the same command again"),
    ((errno.EIO, errno.ESTALE, errno.ENOTCONN), "look after the disk or file server, then run the same command again"),
    ((errno.ELOOP,), "a link that leads to itself: remove it, or put the file back in its place"),
    ((errno.ENAMETOOLONG,), "give a shorter name"),
    ((errno.EISDIR,), "a folder where a file is wanted: remove it, or put the file back in its place"),
)
"""Remedies for system errors a user can fix; any other error is our bug."""


def disk_remedy(error: OSError) -> str | None:
    """Remedy for a full, failing or read-only disk, or for something else in a file's place; None for other errors."""
    return next((remedy for numbers, remedy in DISK_REMEDIES if error.errno in numbers), None)


def printable(text: str, keep: str = "") -> str:
    """Escape control characters, which could rewrite or forge what a terminal shows."""
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )
