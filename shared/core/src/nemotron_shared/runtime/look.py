"""What a dry run sees of a step's raw inputs: the beginnings of files, which a start would read, too."""

from typing import NamedTuple

from nemotron_shared.errors import UserError


class Looked(NamedTuple):
    """Problems that would end the work, and notes on what was not checked."""

    problems: list[UserError]
    notes: list[str]
