"""The known causes, as data: `rules/*.yaml`.

A pattern is text in which `*` stands for anything within the line; there is nothing else to learn, and nothing that
can take long on a hostile line. What a scheduler says of a job is one more line, which `Facts.line` makes:

    scheduler: state=TIMEOUT reason=None exit=0:15
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

TOPICS = ("own", "build", "container", "hub", "gpu", "nccl", "memory", "launch", "disk", "python", "ray", "slurm")
"""The files of rules, in this order: a line belongs to the first rule that matches it, so the special ones stand
before the general ones, between files as within each."""
Level = Literal["cause", "unknown", "end", "consequence", "hint"]
"""In the order of what is shown first. What ended the job; an exception without a rule; how it ended, where something
earlier may say why; what other processes say because one has failed; what is no failure, and worth knowing."""
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Rule(BaseModel):
    """One known message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    match: Texts
    example: str
    """A line as the software prints it, with other names."""
    means: str
    do: Texts
    level: Level = "cause"
    traceback: bool = False
    """Whether it only reports that a process failed, whose own traceback says more."""

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
    texts = [(folder / f"{topic}.yaml").read_text(encoding="utf-8") for topic in TOPICS]
    return tuple(Rule.model_validate(row) for text in texts for row in yaml.safe_load(text))
