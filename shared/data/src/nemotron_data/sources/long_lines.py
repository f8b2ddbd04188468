"""Lines of a text file in bounded memory: of one that is too long, no more is held than tells that it is."""

from collections.abc import Iterator
from typing import TextIO


def lines_up_to(longest: int, content: TextIO) -> Iterator[str]:
    """Each line with its end; of one beyond `longest` characters, a character more than that."""
    while line := content.readline(longest + 1):
        yield line
        while len(line) > longest and not line.endswith("\n"):
            line = content.readline(longest + 1)
