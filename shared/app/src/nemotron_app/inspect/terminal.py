"""An inspection in the terminal. Without colours, what is trained on stands in ⟦ ⟧.

train, row 0 · 4 sequences · 126 tokens, 31 trained on
  1  <|im_start|>user↵
     2+2?<|im_end|>↵
     <|im_start|>assistant↵
     ⟦4<|im_end|>⟧↵
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from nemotron_app.inspect import tables
from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.examples import Example, TokenSequence
from nemotron_app.inspect.histogram import Bin
from nemotron_app.inspect.pieces import Piece, visible
from nemotron_app.report import wording

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDTH_IN_A_PIPE = 140
BAR = 44
ASCII = str.maketrans({"–": "-", "·": "|", "×": "x", "…": "...", "↵": " "})
EIGHTHS = " ▏▎▍▌▋▊▉█"
GROUNDS = ("grey15", "grey27")  # of packed sequences in turn; with their own ink they read on any terminal
INK = {"context": "grey78", "trained": "bold #7fe0a8", "special": "#8ab8ff", "bad": "bold #ff8a7e"}


def print_inspection(found: Inspection, tokens: int, console: "Console | None" = None) -> None:
    """Everything on one console: at most `tokens` tokens of each example."""
    from rich.console import Console

    console = console or Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE)
    _print(console, found.located.title, "bold")
    _print(console, f"{tables.KIND_NAMES[found.located.kind]} in {found.located.path}")
    for warning in found.warnings:
        _print(console, f"warning: {visible(warning, ' ')}", "bold yellow")
    _print_tables(console, found)
    for drawing in tables.drawings(found):
        _print_drawing(console, drawing)
    _print_examples(console, found, tokens)
    _print_refused(console, found)
    _print_duplicates(console, found)


def _print(console: "Console", text: str, style: str = "") -> None:
    from rich.text import Text

    # In a pipe a line stays a line; on a terminal words are wrapped.
    console.print(Text(_plain(console, text), style=style), soft_wrap=not console.is_terminal)


def _heading(console: "Console", text: str) -> None:
    console.print()
    _print(console, text, "bold")


def _print_tables(console: "Console", found: Inspection) -> None:
    for table in (tables.splits_table(found), tables.blend_table(found), tables.agents_table(found)):
        if table:
            console.print()
            _print_table(console, table)


def _print_table(console: "Console", table: tables.Table) -> None:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in table.rows:
        cells = [visible(cell, " ") for cell in row]
        shown.add_row(*(Text(_plain(console, cell)) for cell in cells))
    console.print(shown)


def _print_drawing(console: "Console", drawing: tables.Drawing) -> None:
    _heading(console, f"{drawing.title}, {drawing.unit} ({drawing.note})")
    most = max(found.count for found in drawing.bins)
    first = next(number for number, found in enumerate(drawing.bins) if found.count)
    width = max(len(found.label) for found in drawing.bins)
    for found in _without_gaps(drawing.bins[first:]):
        if found is None:
            _print(console, f"  {'...':>{width}}")
            continue
        bar = _bar(found.count / most, ascii_only=console.options.ascii_only)
        _print(console, f"  {found.label:>{width}} {bar} {wording.count(found.count)}")


def _without_gaps(bins: list[Bin]) -> Iterator[Bin | None]:
    """The bins, with None for each run of three or more empty ones."""
    for empty, run in groupby(bins, lambda found: found.count == 0):
        group = list(run)
        yield from [None] if empty and len(group) > 2 else group


def _bar(share: float, *, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * round(share * BAR)
    eighths = max(round(share * BAR * 8), 1 if share else 0)
    return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def _print_examples(console: "Console", found: Inspection, tokens: int) -> None:
    if not found.examples:
        return
    _heading(console, f"Examples of {found.shown}")
    marked = console.no_color or not console.is_terminal
    if note := tables.mark_note(found):
        bracketed = marked and found.located.kind == "packs"
        _print(console, f"{note} They stand in {' '.join(_brackets(console))}." if bracketed else note)
    for example in found.examples:
        console.print()
        _print(console, visible(caption(example), " "), "underline")
        _print_example(console, found, example, tokens, marked)


def caption(example: Example) -> str:
    """`train, row 0 · 4 sequences · 126 tokens, 31 trained on`."""
    parts = [example.place]
    size = sum(len(sequence.ids) for sequence in example.sequences)
    if example.sequences and example.sequences[0].trained is not None:
        count = len(example.sequences)
        trained = sum(sequence.trained_tokens for sequence in example.sequences)
        parts += [f"{count} sequence{'s' if count != 1 else ''}", f"{size:,} tokens, {trained:,} trained on"]
    elif example.sequences:
        parts.append(f"{size:,} tokens")
    return " · ".join([*parts, *([f"problem: {example.problem}"] if example.problem else [])])


def _print_example(console: "Console", found: Inspection, example: Example, tokens: int, marked: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 2))
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column(overflow="fold")

    def add(label: str, content: "RenderableType") -> None:
        grid.add_row(Text(_plain(console, label)), content)

    left = tokens
    for number, sequence in enumerate(example.sequences):
        if left <= 0:
            add("", Text(_plain(console, f"… {len(example.sequences) - number:,} more sequences")))
            break
        add(str(number + 1), _sequence_text(console, found, sequence, number, left, marked))
        left -= len(sequence.ids)
    for label, text in (*example.turns, *example.facts):
        add(visible(label, " "), Text(_plain(console, visible(text))))
    console.print(grid)


def _sequence_text(
    console: "Console", found: Inspection, sequence: TokenSequence, number: int, limit: int, marked: bool
) -> "Text":
    from rich.text import Text

    text = Text()
    opening, closing = _brackets(console)
    for trained, group in groupby(found.decoder.pieces(sequence, limit), lambda piece: piece.trained):
        bracketed = marked and trained and sequence.trained is not None
        text.append(opening if bracketed else "")
        for piece in group:
            text.append(_plain(console, _shown(console, piece)), _style(piece, number, sequence))
        text.append(closing if bracketed else "")
    if len(sequence.ids) > limit:
        text.append(_plain(console, f" … {len(sequence.ids) - limit:,} more tokens"), "dim")
    if text.plain.endswith("\n"):
        text.right_crop(1)  # the table breaks the line already
    return text


def _shown(console: "Console", piece: Piece) -> str:
    return visible(piece.text, "\\n\n" if console.options.ascii_only else "↵\n")


def _style(piece: Piece, number: int, sequence: TokenSequence) -> str:
    trained = piece.trained and sequence.trained is not None
    ink = INK[piece.kind if piece.kind in INK and not trained else "trained" if trained else "context"]
    return f"{INK['bad'] if piece.kind == 'bad' else ink} on {GROUNDS[number % 2]}"


def _brackets(console: "Console") -> tuple[str, str]:
    return ("[[", "]]") if console.options.ascii_only else ("⟦", "⟧")


def _plain(console: "Console", text: str) -> str:
    """The text, or where only ASCII can be printed its escaped form."""
    if not console.options.ascii_only:
        return text
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode()


def _print_refused(console: "Console", found: Inspection) -> None:
    if found.refused is None:
        return
    total = sum(reason.count for reason in found.refused)
    _heading(console, f"Refused rows: {total:,}")
    for reason in found.refused:
        _print(console, f"  {reason.count:,} × {visible(reason.reason, ' ')}")
        for place, detail, snippet in reason.examples:
            _print(console, "      " + _line(place, detail, snippet))


def _line(*parts: str) -> str:
    return "  ".join(visible(part, "↵") for part in parts if part)


def _print_duplicates(console: "Console", found: Inspection) -> None:
    _heading(console, "Duplicates and overlap")
    _print_lines(console, tables.duplicate_lines(found))
    for again in found.copies.most_common():
        _print(console, f"  {again.count:,} × {_line(again.text)}  ({'; '.join(again.places)})")
    for overlap in found.overlaps:
        _print_lines(console, [f"{overlap.split}, also in training: {_line(text)}" for text in overlap.examples])


def _print_lines(console: "Console", lines: Sequence[str]) -> None:
    for line in lines:
        _print(console, f"  {line}")
