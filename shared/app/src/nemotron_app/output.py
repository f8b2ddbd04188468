"""Text tables for the terminal, and self-contained HTML pages."""

import base64
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nemotron_app.wording import GAP, kept_columns, width_of
from nemotron_shared.system.errors import printable

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
    """Plain text without markup, so that a name such as "[red]" is kept; escaped if the console is ASCII only."""
    from rich.text import Text

    text = printable(text, keep="\n\t")
    if console.options.ascii_only:
        text = text.translate(ASCII).encode("ascii", "backslashreplace").decode()
    return Text(text, style=style)


def print_table(
    console: "Console",
    table: Table,
    *,
    right: bool = False,
    wrapped: str = "",
    folded: int | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Print aligned columns. `right` right-aligns all but the first; only the column `wrapped` wraps at spaces.

    Columns in `spare` are left out first where the console is too narrow. A table that is still wider is split into
    blocks, each starting with the first column. With `folded`, longer cells are folded instead.
    """
    columns = list(zip(table.headings, *table.rows, strict=True))
    widths = [max(_width(text, is_wrapped=False) for text in column) for column in columns]
    kept = kept_columns(table.headings, widths, spare, console.width)
    table = Table([table.headings[at] for at in kept], [[row[at] for at in kept] for row in table.rows])
    columns = [columns[at] for at in kept]
    widths = [max(_width(text, is_wrapped=column[0] == wrapped) for text in column) for column in columns]
    least = [width if at == 0 or folded is None else min(width, folded) for at, width in enumerate(widths)]
    blocks = [[0]]
    for at in range(1, len(columns)):
        if len(blocks[-1]) > 1 and width_of(least, [*blocks[-1], at]) > console.width:
            blocks.append([0])
        blocks[-1].append(at)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        fits = width_of(widths, block) <= console.width
        part = Table([table.headings[at] for at in block], [[row[at] for at in block] for row in table.rows])
        _print_block(console, part, right=right, wrapped=wrapped, first=widths[0], fits=fits)


def _width(text: str, *, is_wrapped: bool) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.split() if is_wrapped else text.split("\n")), default=0)


def _print_block(console: "Console", table: Table, *, right: bool, wrapped: str, first: int, fits: bool) -> None:
    from rich.table import Table as RichTable

    shown = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for number, heading in enumerate(table.headings):
        shown.add_column(
            text_of(console, heading),
            justify="right" if right and number else "left",
            # fold, never truncate, what does not fit; the longest cells first
            no_wrap=heading != wrapped and (fits or (number == 0 and first <= console.width // 2)),
            overflow="fold",
        )
    for row in table.rows:
        shown.add_row(*(text_of(console, cell) for cell in row))
    console.print(shown)


# Self-contained HTML pages: one file each, without network access.
#
# Templates escape all text that comes from data. The style sheet is inlined, and the content-security policy forbids
# loading anything or running any script except ours, which it identifies by digest.


def render(
    template: str, values: dict[str, Any], filters: dict[str, Callable[..., Any]] | None = None, package: str = ""
) -> str:
    """Render a page from one of the templates of `report` or `inspect`, or of another package."""
    places = ["nemotron_app.report", "nemotron_app.inspect", *([package] if package else [])]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(place, ".") for place in places]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters or {}
    return environment.get_template(template).render({**values, "script": script()})


def script() -> dict[str, str]:
    """The script that shows chart values: its `text`, and its `digest` for the content-security policy."""
    text = resources.files("nemotron_app.report").joinpath("charts.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "digest": f"sha256-{digest}"}
