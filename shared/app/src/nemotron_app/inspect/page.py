"""The HTML page of an inspection: one file that needs nothing else, in the style of the training report.

Everything from the data is text to the template, which escapes it; the page's security policy loads nothing.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from nemotron_app.inspect import tables
from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.examples import Example
from nemotron_app.inspect.pieces import Piece, visible
from nemotron_app.inspect.terminal import caption
from nemotron_app.report.charts import Tick, tick_labels, ticks

HEIGHT, LEFT, BOTTOM, TOP = 190, 46, 26, 10
WIDTH, WIDTH_ALONE = 520, 1036
X_LABELS = 6


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram in the drawing's units, with what is shown when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class BarChart:
    """A histogram as SVG geometry."""

    title: str
    note: str
    look: str
    bars: list[Bar]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int
    height: int = HEIGHT
    left: int = LEFT
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Shown:
    """One example: its caption, its sequences as runs of pieces (trained on or not), its turns and facts."""

    caption: str
    sequences: list[list[tuple[bool, list[Piece]]]]
    marked: bool
    more: str
    turns: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    blocks: list["Block"]


@dataclass(frozen=True)
class Block:
    """A run of tokens in the strip that shows how a row is packed, in per cent of the pack size."""

    at: float
    width: float
    look: str


def render(found: Inspection, tokens: int) -> str:
    """The whole page, with at most `tokens` tokens of each example."""
    loader = ChoiceLoader([PackageLoader("nemotron_app.inspect", "."), PackageLoader("nemotron_app.report", ".")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible"] = visible
    return environment.get_template("page.html.jinja").render(_view(found, tokens))


def _view(found: Inspection, tokens: int) -> dict[str, Any]:
    drawings = tables.drawings(found)
    return {
        "found": found,
        "kind": tables.KIND_NAMES[found.located.kind],
        "tiles": tables.tiles(found),
        "splits": tables.splits_table(found),
        "blend": tables.blend_table(found),
        "agents": tables.agents_table(found),
        "charts": [bar_chart(drawing, WIDTH if len(drawings) > 1 else WIDTH_ALONE) for drawing in drawings],
        "examples": [_shown(found, example, tokens) for example in found.examples],
        "note": tables.mark_note(found),
        "duplicates": tables.duplicate_lines(found),
        "again": found.copies.most_common(),
        "samples": [(split.name, split.sample, split.seen) for split in found.figures if split.sample],
    }


def bar_chart(drawing: tables.Drawing, width: int) -> BarChart:
    """Lay out a histogram; bins of doubling width get bars of equal width."""
    bins = drawing.bins
    marks = ticks(0.0, float(max(found.count for found in bins)), 4)
    bottom, step = HEIGHT - BOTTOM, (width - LEFT - 10) / len(bins)

    def y_of(value: float) -> float:
        return round(bottom - (bottom - TOP) * value / marks[-1], 1)

    bars = [
        Bar(round(LEFT + step * i + 1, 1), y_of(found.count), round(max(step - 2, 1), 1),
            round(bottom - y_of(found.count), 1), f"{found.label}: {found.count:,}")
        for i, found in enumerate(bins)
    ]  # fmt: skip
    every = max(1, -(-len(bins) // X_LABELS))
    x_ticks = [Tick(round(LEFT + step * i, 1), f"{found.low:,}") for i, found in enumerate(bins) if i % every == 0]
    if every == 1 or (len(bins) - 1) % every >= every // 2:
        x_ticks.append(Tick(round(LEFT + step * len(bins), 1), f"{bins[-1].high:,}"))
    y_ticks = [Tick(y_of(mark), label) for mark, label in zip(marks, tick_labels(marks), strict=True)]
    return BarChart(f"{drawing.title}, {drawing.unit}", drawing.note, drawing.look, bars, x_ticks, y_ticks, width)


def _shown(found: Inspection, example: Example, tokens: int) -> Shown:
    sequences, left = [], tokens
    for sequence in example.sequences:
        if left <= 0:
            break
        pieces = found.decoder.pieces(sequence, left)
        sequences.append([(key, list(group)) for key, group in groupby(pieces, lambda piece: piece.trained)])
        left -= len(sequence.ids)
    total = sum(len(sequence.ids) for sequence in example.sequences)
    more = f"{total - tokens:,} more tokens are not shown." if total > tokens else ""
    marked = any(sequence.trained is not None for sequence in example.sequences)
    blocks = pack_blocks(example, tables.pack_size_of(found) or total) if marked else []
    return Shown(caption(example), sequences, marked, more, list(example.turns), list(example.facts), blocks)


def pack_blocks(example: Example, pack_size: int) -> list[Block]:
    """Context and trained runs of each sequence of a row, where they lie in the pack."""
    blocks, position, whole = [], 0, max(pack_size, sum(len(sequence.ids) for sequence in example.sequences), 1)
    for number, sequence in enumerate(example.sequences):
        flags = [] if sequence.trained is None else sequence.trained.tolist()
        for trained, run in groupby(flags):
            size = len(list(run))
            look = "trained" if trained else ("odd" if number % 2 else "even")
            blocks.append(Block(round(100 * position / whole, 3), round(100 * size / whole, 3), look))
            position += size
    return blocks
