"""A reason why something cannot run: what is wrong, and what to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A reason a config cannot run.

    Attributes:
        key: the setting at fault, if there is one.
        of_layout: another layout of the recipe would work.
    """

    message: str
    remedy: str | None = None
    key: str | None = None
    of_layout: bool = False
