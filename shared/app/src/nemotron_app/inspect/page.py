"""The page of an inspection, in the style of the training report: what its template shows."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from nemotron_app import html
from nemotron_app.inspect import tables
from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.examples import Example
from nemotron_app.inspect.pieces import visible
from nemotron_app.report.charts import Tick, tick_labels, ticks

HEIGHT, LEFT, BOTTOM, TOP = 190, 46, 26, 10
WIDTH, WIDTH_ALONE = 520, 1036
X_LABELS = 6


@dataclass(frozen=True)
class BarChart:
    """A histogram as SVG geometry; of a bar: x, y, width, height, and what is shown when it is pointed at."""

    histogram: tables.Histogram
    bars: list[tuple[float, float, float, float, str]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int
    height: int = HEIGHT
    left: int = LEFT
    bottom: int = HEIGHT - BOTTOM


def render(found: Inspection, tokens: int) -> str:
    """The whole page, with at most `tokens` tokens of each example."""
    histograms = tables.histograms(found)
    values = {
        "found": found,
        "tables": tables,
        "charts": [bar_chart(one, WIDTH if len(histograms) > 1 else WIDTH_ALONE) for one in histograms],
        "examples": [_shown(found, example, tokens) for example in found.examples],
        "limit": tokens,
    }
    return html.render("inspection.html.jinja", values, {"visible": visible})


def bar_chart(histogram: tables.Histogram, width: int) -> BarChart:
    """Lay out a histogram; bins of doubling width get bars of equal width."""
    bins = histogram.bins
    marks = ticks(0.0, float(max(found.count for found in bins)), 4)
    bottom, step = HEIGHT - BOTTOM, (width - LEFT - 10) / len(bins)

    def y_of(value: float) -> float:
        return round(bottom - (bottom - TOP) * value / marks[-1], 1)

    bars = []
    for i, found in enumerate(bins):
        y, text = y_of(found.count), f"{found.label}: {found.count:,}"
        bars.append((round(LEFT + step * i + 1, 1), y, round(max(step - 2, 1), 1), round(bottom - y, 1), text))
    every = max(1, -(-len(bins) // X_LABELS))
    x_ticks = [Tick(round(LEFT + step * i, 1), f"{found.low:,}") for i, found in enumerate(bins) if i % every == 0]
    if every == 1 or (len(bins) - 1) % every >= every // 2:
        x_ticks.append(Tick(round(LEFT + step * len(bins), 1), f"{bins[-1].high:,}"))
    y_ticks = [Tick(y_of(mark), label) for mark, label in zip(marks, tick_labels(marks), strict=True)]
    return BarChart(histogram, bars, x_ticks, y_ticks, width)


def _shown(found: Inspection, example: Example, tokens: int) -> dict[str, Any]:
    """An example, its sequences as runs of pieces that are trained on or not, and where these lie in the pack.

    The strip that shows the pack has an (x, width, look) for each run, in per cent of the pack size.
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
