"""An inspection in the terminal. Without colors, trained tokens are enclosed in ⟦ ⟧.

train, row 0 · 4 sequences · 126 tokens, 31 trained on
  1  <|im_start|>user↵
     2+2?<|im_end|>↵
     <|im_start|>assistant↵
     ⟦4<|im_end|>⟧↵
"""

from itertools import groupby
from typing import TYPE_CHECKING

from nemotron_app.inspect import tables
from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.examples import TokenSequence
from nemotron_app.inspect.pieces import Piece, visible
from nemotron_app.rich_table import open_console, print_table, text_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

BAR = 44
EIGHTHS = " ▏▎▍▌▋▊▉█"
# Backgrounds of alternating packed sequences; readable on any terminal because the text color is set as well.
GROUNDS = ("grey15", "grey27")
INK = {"context": "grey78", "trained": "bold #7fe0a8", "special": "#8ab8ff", "bad": "bold #ff8a7e"}


def print_inspection(found: Inspection, tokens: int, console: "Console | None" = None) -> None:
    """Print everything to one console, with at most `tokens` tokens per example."""
    console = console or open_console()
    _print(console, found.prepared.title, "bold")
    _print(console, f"{tables.KIND_NAMES[found.prepared.kind]} in {found.prepared.path}")
    for warning in found.warnings:
        _print(console, f"warning: {visible(warning, ' ')}", "bold yellow")
    for table in tables.tables(found):
        console.print()
        rows = [[visible(cell, " ") for cell in row] for row in table.rows]
        print_table(console, tables.Table(table.headings, rows), right=True, wrapped=table.headings[0])
    for histogram in tables.histograms(found):
        _print_histogram(console, histogram)
    if found.examples:
        _print_examples(console, found, tokens)
    if found.refused is not None:
        _heading(console, f"Refused rows: {sum(reason.count for reason in found.refused):,}")
        for reason in found.refused:
            _print(console, f"  {reason.count:,} × {visible(reason.reason, ' ')}")
            for example in reason.examples:
                _print(console, "      " + "  ".join(visible(text, "↵") for text in example if text))
    _heading(console, "Duplicates and overlap")
    lines = tables.duplicate_lines(found)
    for count, text, places in found.copies.most_common():
        lines.append(f"{count:,} × {visible(text, '↵')}  ({'; '.join(places)})")
    for overlap in found.overlaps:
        lines += [f"{overlap.split}, also in training: {visible(text, '↵')}" for text in overlap.examples]
    for line in lines:
        _print(console, f"  {line}")


def _print(console: "Console", text: str, style: str = "") -> None:
    # Keep lines whole in a pipe; wrap words on a terminal.
    console.print(text_of(console, text, style), soft_wrap=not console.is_terminal)


def _heading(console: "Console", text: str) -> None:
    console.print()
    _print(console, text, "bold")


def _print_histogram(console: "Console", histogram: tables.Histogram) -> None:
    """One bar per bin from the first non-empty one; three or more empty bins in a row become dots."""
    _heading(console, f"{histogram.title}, {histogram.unit} ({histogram.note})")
    most = max(found.count for found in histogram.bins)
    width = max(len(found.label) for found in histogram.bins)
    for number, (is_empty, run) in enumerate(groupby(histogram.bins, lambda found: found.count == 0)):
        bins = list(run)
        if is_empty and number == 0:
            continue
        if is_empty and len(bins) > 2:
            _print(console, f"  {'...':>{width}}")
            continue
        for found in bins:
            share = found.count / most
            eighths = max(round(share * BAR * 8), 1 if share else 0)
            bar = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            bar = "#" * round(share * BAR) if console.options.ascii_only else bar
            _print(console, f"  {found.label:>{width}} {bar} {found.count:,}")


def _print_examples(console: "Console", found: Inspection, tokens: int) -> None:
    from rich.table import Table

    _heading(console, f"Examples of {found.shown}")
    brackets = ("[[", "]]") if console.options.ascii_only else ("⟦", "⟧")
    if console.is_terminal and not console.no_color:
        brackets = ("", "")
    if note := tables.mark_note(found):
        bracketed = brackets[0] and found.prepared.kind == "packs"
        _print(console, f"{note} They stand in {' '.join(brackets)}." if bracketed else note)
    for example in found.examples:
        console.print()
        _print(console, visible(tables.caption(example), " "), "underline")
        grid = Table.grid(padding=(0, 1, 0, 2))
        grid.add_column(justify="right", style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        left = tokens
        for number, sequence in enumerate(example.sequences):
            if left <= 0:
                grid.add_row("", text_of(console, f"… {len(example.sequences) - number:,} more sequences"))
                break
            pieces = found.decoder.pieces(sequence, left)
            grid.add_row(str(number + 1), _sequence_text(console, pieces, sequence, number, brackets))
            left -= len(sequence.ids)
        for label, text in (*example.turns, *example.facts):
            grid.add_row(text_of(console, visible(label, " ")), text_of(console, visible(text)))
        console.print(grid)


def _sequence_text(
    console: "Console", pieces: list[Piece], sequence: TokenSequence, number: int, brackets: tuple[str, str]
) -> "Text":
    """The pieces of a sequence, colored or in brackets, on a background that alternates with the sequence number."""
    text = text_of(console, "")
    newline = "\\n\n" if console.options.ascii_only else "↵\n"
    for trained, run in groupby(pieces, lambda piece: piece.trained and sequence.trained is not None):
        text.append(brackets[0] if trained else "")
        for piece in run:
            ink = "bad" if piece.kind == "bad" else "trained" if trained else piece.kind
            style = f"{INK.get(ink, INK['context'])} on {GROUNDS[number % 2]}"
            text.append_text(text_of(console, visible(piece.text, newline), style))
        text.append(brackets[1] if trained else "")
    shown = sum(len(piece.ids) for piece in pieces)
    if len(sequence.ids) > shown:
        text.append_text(text_of(console, f" … {len(sequence.ids) - shown:,} more tokens", "dim"))
    if text.plain.endswith("\n"):
        text.right_crop(1)  # the table adds its own line break
    return text
