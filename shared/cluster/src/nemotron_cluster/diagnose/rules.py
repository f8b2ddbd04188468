"""Known causes, as data: `rules/*.yaml`.

Patterns are literal text with the wildcard `*`, which matches within a line. They are easy to write, and cannot take
exponential time on a hostile line. The scheduler's state is matched as one more line, made by `Facts.line`:

    scheduler: state=TIMEOUT reason=None exit=0:15
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

TOPICS = ("own", "build", "container", "hub", "gpu", "nccl", "memory", "launch", "disk", "python", "ray", "slurm")
"""The rule files in order. The first matching rule claims a line, so specific rules come before general ones, both
across files and within each.
"""
Level = Literal["cause", "unknown", "end", "consequence", "hint"]
"""In display order: the cause of the end; an exception without a rule; how the job ended, which may have an earlier
cause; reactions of other processes to a failure; a hint that is not a failure.
"""
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Rule(BaseModel):
    """One known message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    match: Texts
    example: str
    """A line as the software prints it, with names changed."""
    means: str
    do: Texts
    level: Level = "cause"
    traceback: bool = False
    """Whether the message only reports that a process failed, so that the process's own traceback says more."""

    def lines(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Start and end of every matching line, and where its relevant part begins."""
        for pattern in self.match:
            yield from _lines(text, pattern.split("*"))


def _lines(text: str, parts: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yields each line at most once, even if the relevant part occurs several times."""
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
    """All rules, in matching order."""
    folder = files("nemotron_cluster.diagnose") / "rules"
    texts = [(folder / f"{topic}.yaml").read_text(encoding="utf-8") for topic in TOPICS]
    return tuple(Rule.model_validate(row) for text in texts for row in yaml.safe_load(text))
