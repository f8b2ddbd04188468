"""Plain output of the commands that look at a store: aligned columns, and nothing that moves a cursor.

Names, commands and metadata come from files that somebody else may have written, so control characters in them are
spelled out: an escape sequence could otherwise rewrite what the terminal shows.
"""

from collections.abc import Sequence

from nemotron_shared.errors import printable


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Aligned columns; those named in `right` end at the same place."""
    clean = [headings, *(row if "".join(row).isprintable() else [*map(printable, row)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    # one pattern for all lines, because a store lists ten thousand
    sides = [">" if name in right else "<" for name in headings]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)).format
    return [line(*row).rstrip() for row in clean]


def minute(moment: str) -> str:
    """`2026-01-31 12:00 UTC` of a time in ISO 8601, UTC."""
    return moment[:16].replace("T", " ") + " UTC"
