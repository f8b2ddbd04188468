"""Tables of text, for the terminal through rich and for the page's templates."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemotron_shared.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH_IN_A_PIPE = 160
ASCII = str.maketrans({"–": "-", "−": "-", "·": "|", "×": "x", "…": "...", "↵": " "})


@dataclass(frozen=True)
class Table:
    """Headings and rows of text; the first column names the row."""

    headings: list[str]
    rows: list[list[str]]


def open_console() -> "Console":
    """Standard output, as wide as its terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE)


def text_of(console: "Console", text: str, style: str = "") -> "Text":
    """Text and not markup, so that a name such as "[red]" stays what it is; escaped where only ASCII can be shown."""
    from rich.text import Text

    text = printable(text, keep="\n\t")
    if console.options.ascii_only:
        text = text.translate(ASCII).encode("ascii", "backslashreplace").decode()
    return Text(text, style=style)


def print_table(console: "Console", table: Table, *, right: bool = False, wrapped: str = "") -> None:
    """Print aligned columns; `right` aligns all but the first to the right, and only `wrapped` is broken at spaces."""
    from rich.table import Table as RichTable

    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, heading in enumerate(table.headings):
        shown.add_column(
            text_of(console, heading),
            justify="right" if right and number else "left",
            no_wrap=heading != wrapped,
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*(text_of(console, cell) for cell in row))
    console.print(shown)
