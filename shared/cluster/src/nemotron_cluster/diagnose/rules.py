"""The known causes, as data: `rules/*.yaml`.

A pattern is text in which `*` stands for anything within the line; there is nothing else to learn, and nothing that
can take long on a hostile line. A rule about the scheduler is matched with one line that `Facts.line` makes:

    state=TIMEOUT reason=None exit=0:15
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import yaml

TOPICS = ("own", "build", "container", "hub", "gpu", "nccl", "memory", "launch", "disk", "python", "ray", "slurm")
"""The files of rules, in this order: a line belongs to the first rule that matches it, so the special ones stand
before the general ones, between files as within each."""
Level = Literal["cause", "end", "consequence", "hint"]
"""What ended the job; how it ended, where something earlier in a log may say why; what other processes say because
one has failed; what is no failure, and worth knowing."""


@dataclass(frozen=True)
class Rule:
    """One known message."""

    id: str
    match: tuple[str, ...]
    example: str
    """A line as the software prints it, with other names."""
    means: str
    do: tuple[str, ...]
    source: Literal["log", "scheduler"] = "log"
    level: Level = "cause"

    def lines(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Start and end of every line that matches, and where in it the telling part begins."""
        for pattern in self.match:
            yield from _lines(text, pattern.split("*"))


def _lines(text: str, parts: list[str]) -> Iterator[tuple[int, int, int]]:
    """Every line is looked at once, however often the telling part stands in it."""
    telling = max(parts, key=len)
    at = text.find(telling)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        if len(parts) == 1 or _in_order(text, parts, start, end):
            yield start, end, at
        at = text.find(telling, end)


def _in_order(text: str, parts: list[str], start: int, end: int) -> bool:
    for part in parts:
        at = text.find(part, start, end)
        if at < 0:
            return False
        start = at + len(part)
    return True


@cache
def rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are asked."""
    folder = files("nemotron_cluster.diagnose") / "rules"
    return tuple(
        Rule(**{**row, "match": _tuple(row["match"]), "do": _tuple(row["do"])})
        for topic in TOPICS
        for row in yaml.safe_load((folder / f"{topic}.yaml").read_text(encoding="utf-8"))
    )


def _tuple(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
