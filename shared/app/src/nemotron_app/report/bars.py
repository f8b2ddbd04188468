"""Lay out histograms as bar charts, for both the report and the inspection."""

from collections.abc import Sequence
from dataclasses import dataclass

from nemotron_app.inspect.histogram import Bin
from nemotron_app.report.charts import TOP, Tick, tick_labels, ticks

BARS_HEIGHT, BARS_LEFT, BARS_BOTTOM = 190, 46, 26
X_LABELS = 6


@dataclass(frozen=True)
class Histogram:
    """A histogram with its caption."""

    title: str
    unit: str
    bins: list[Bin]
    note: str
    look: str


@dataclass(frozen=True)
class BarChart:
    """SVG geometry of a histogram. Each bar has x, y, width, height and a tooltip."""

    histogram: Histogram
    bars: list[tuple[float, float, float, float, str]]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int
    height: int = BARS_HEIGHT
    left: int = BARS_LEFT
    bottom: int = BARS_HEIGHT - BARS_BOTTOM


def bar_chart(histogram: Histogram, width: int) -> BarChart:
    """Lay out a histogram; bins of doubling width get bars of equal width."""
    bins = histogram.bins
    marks = ticks(0.0, float(max(found.count for found in bins)), 4)
    bottom, step = BARS_HEIGHT - BARS_BOTTOM, (width - BARS_LEFT - 10) / len(bins)

    def y_of(value: float) -> float:
        return round(bottom - (bottom - TOP) * value / marks[-1], 1)

    bars = []
    for i, found in enumerate(bins):
        y, text = y_of(found.count), f"{found.label}: {found.count:,}"
        bars.append((round(BARS_LEFT + step * i + 1, 1), y, round(max(step - 2, 1), 1), round(bottom - y, 1), text))
    x_ticks = [Tick(round(BARS_LEFT + step * at, 1), f"{value:,}") for at, value in _x_marks(bins)]
    y_ticks = [Tick(y_of(mark), label) for mark, label in zip(marks, tick_labels(marks), strict=True)]
    return BarChart(histogram, bars, x_ticks, y_ticks, width)


def _x_marks(bins: Sequence[Bin]) -> list[tuple[float, int]]:
    """Labels below the bars, at positions in bar widths: bin edges, or values if every bin holds a single value."""
    every = max(1, -(-len(bins) // X_LABELS))
    if all(found.low == found.high for found in bins):
        return [(at + 0.5, found.low) for at, found in enumerate(bins) if at % every == 0]
    marks: list[tuple[float, int]] = [(at, found.low) for at, found in enumerate(bins) if at % every == 0]
    if every == 1 or (len(bins) - 1) % every >= every // 2:
        last, edge = bins[-1], bins[-1].high + 1
        even = 2 * last.low - bins[-2].low if len(bins) > 1 else edge
        marks.append((len(bins), even if abs(edge - even) == 1 else edge))  # 100 % is in the bin that starts with 90
    return marks
