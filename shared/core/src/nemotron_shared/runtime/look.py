"""What a dry run sees of the raw inputs of a step: the beginnings of files, which a start would read, too."""

from typing import NamedTuple

from nemotron_shared.errors import UserError


class Looked(NamedTuple):
    """What would end the work, and notes on what was not looked at."""

    problems: list[UserError]
    notes: list[str]
