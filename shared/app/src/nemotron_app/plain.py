"""Plain output for the commands that inspect a store: aligned columns, no cursor movement.

Names, commands and metadata come from files that others may have written. Control characters in them are escaped;
otherwise an escape sequence could rewrite the terminal.
"""

from collections.abc import Sequence

from nemotron_shared.errors import printable


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Aligned columns; those named in `right` are right-aligned."""
    clean = [headings, *(row if "".join(row).isprintable() else [*map(printable, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    # build the pattern once, because a store may list ten thousand lines
    sides = [">" if name in right else "<" for name in headings]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)).format
    return [line(*row).rstrip() for row in clean]


def minute(moment: str) -> str:
    """Format an ISO 8601 UTC time as `2026-01-31 12:00 UTC`."""
    return moment[:16].replace("T", " ") + " UTC"
