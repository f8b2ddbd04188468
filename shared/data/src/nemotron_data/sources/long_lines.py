"""Read lines of a text file in bounded memory, truncating lines that are too long."""

from collections.abc import Iterator
from typing import TextIO


def lines_up_to(longest: int, content: TextIO) -> Iterator[str]:
    """Yield each line with its newline; lines of more than `longest` characters are truncated one character beyond."""
    while line := content.readline(longest + 1):
        yield line
        while len(line) > longest and not line.endswith("\n"):
            line = content.readline(longest + 1)
