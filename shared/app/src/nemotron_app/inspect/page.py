"""Template values for the HTML page of an inspection, in the style of the training report."""

from itertools import groupby
from typing import Any

from nemotron_app import html
from nemotron_app.inspect import tables
from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.examples import Example
from nemotron_app.inspect.pieces import visible
from nemotron_app.report.bars import bar_chart

WIDTH, WIDTH_ALONE = 520, 1036


def render(found: Inspection, tokens: int) -> str:
    """Render the page, with at most `tokens` tokens per example."""
    histograms = tables.histograms(found)
    values = {
        "found": found,
        "kind": tables.KIND_NAMES[found.prepared.kind],
        "tiles": tables.tiles(found),
        "tables": tables.tables(found),
        "mark_note": tables.mark_note(found),
        "duplicates": tables.duplicate_lines(found),
        "caption": tables.caption,
        "charts": [bar_chart(one, WIDTH if len(histograms) > 1 else WIDTH_ALONE) for one in histograms],
        "examples": [_shown(found, example, tokens) for example in found.examples],
        "limit": tokens,
    }
    return html.render("inspection.html.jinja", values, {"visible": visible})


def _shown(found: Inspection, example: Example, tokens: int) -> dict[str, Any]:
    """An example: its sequences as runs of trained or untrained pieces, and the position of each run in the pack.

    The strip that shows the pack has (x, width, look) per run, in percent of the pack size.
    """
    sequences, strip, left, position = [], [], tokens, 0
    whole = max(tables.pack_size_of(found) or 0, example.tokens, 1)
    for number, sequence in enumerate(example.sequences):
        if left > 0:
            pieces = found.decoder.pieces(sequence, left)
            sequences.append([(trained, list(run)) for trained, run in groupby(pieces, lambda piece: piece.trained)])
        left -= len(sequence.ids)
        for trained, run in groupby([] if sequence.trained is None else sequence.trained.tolist()):
            size = len(list(run))
            look = "trained" if trained else "odd" if number % 2 else "even"
            strip.append((round(100 * position / whole, 3), round(100 * size / whole, 3), look))
            position += size
    return {"example": example, "sequences": sequences, "strip": strip}
