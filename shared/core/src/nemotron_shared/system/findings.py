"""A finding: a problem, a lack of this machine, or a note, with its remedy.

    yield problem("8 rows per step are not a multiple of 3", "change the batch", "train.global_batch_size")
    yield lacking("engine 'automodel' needs the package nemo-automodel", "nemotron engine install automodel")
    yield note("[super3-pretrain-model:latest] not there: starting from random weights")

A check is a function that yields findings and changes nothing. Whoever cannot go on raises a `UserError`, which carries
the problem. `console.finding_lines` prints one, whoever found it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
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
    """

    level: Level
    message: str
    remedy: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n  {self.remedy}"


def problem(message: str, remedy: str | None = None, key: str | None = None) -> Finding:
    """A reason why something cannot work, on any machine."""
    return Finding("problem", bounded(message), None if remedy is None else bounded(remedy), key)


def lacking(message: str, remedy: str | None = None, key: str | None = None) -> Finding:
    """Something that this machine does not have: packages, processes, GPUs, memory, disk."""
    return Finding("lacking", bounded(message), None if remedy is None else bounded(remedy), key)


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
