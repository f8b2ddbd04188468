"""Geometry of charts and histograms for HTML pages: numbers in, positions and SVG paths out."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

# Drawn here and not with a plotting library, so that the page's style controls the colors (light, dark, print), text
# stays text, and a chart takes only a few kilobytes. `charts.js` shows the values of a point.

Point = tuple[float, float]
MAX_POINTS = 400
TINIEST = 1e-30
BOTTOM, TOP, RIGHT = 24, 10, 10
CHARACTER_WIDTH = 6.4
TINTS = 6
DECADES_FROM = 5
"""Use a logarithmic axis, where allowed, if values differ by more than this factor."""


@dataclass(frozen=True)
class Series:
    """One measurement over steps. `look` names its style: raw, mean, check (points on a line) or plain; `tint` is the
    index of its color.
    """

    name: str
    points: list[Point]
    look: str = "plain"
    tint: int | None = None


@dataclass(frozen=True)
class Tick:
    """A position on an axis, in units of the drawing, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Curve:
    """A series as an SVG path. `dots` are (x, y) of isolated points; `steps` and `values` are shown in tooltips."""

    name: str
    style: str
    path: str
    dots: list[tuple[float, float]]
    steps: list[str]
    values: list[str]


@dataclass(frozen=True)
class LineChart:
    """A drawing of `width` x `height` units. `left`, `right`, `top` and `bottom` bound the plot area, which covers
    steps `first` to `last`. `logarithmic` refers to the value axis.
    """

    title: str
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    first: float
    last: float
    logarithmic: bool
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[Curve]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    width: int,
    height: int,
    from_zero: bool = False,
    may_be_logarithmic: bool = False,
) -> LineChart | None:
    """Lay out series over steps; None if no point is finite. Non-finite values leave gaps."""
    finite = [point for line in series for point in line.points if math.isfinite(point[1])]
    if not finite:
        return None
    values = [y for _, y in finite]
    logarithmic = may_be_logarithmic and min(values) > TINIEST and max(values) >= DECADES_FROM * min(values)
    most = 4 if height < 200 else 6
    if logarithmic:
        y_values = log_ticks(min(values), max(values), most)
        labels = [f"{y:g}" for y in y_values]
    else:
        values += [0.0] if from_zero else []
        y_values = ticks(min(values), max(values), most)
        labels = tick_labels(y_values)
    scale: Callable[[float], float] = math.log if logarithmic else float
    steps = [x for x, _ in finite]
    left, right = 8 + CHARACTER_WIDTH * max(map(len, labels)), float(width - RIGHT)
    top, bottom = float(TOP), float(height - BOTTOM)
    first, last = min(steps), max(max(steps), min(steps) + 1)
    lowest, highest = scale(y_values[0]), scale(y_values[-1])

    def x_of(step: float) -> float:
        return round(left + (right - left) * (step - first) / (last - first), 1)

    def y_of(value: float) -> float:
        return round(bottom - (bottom - top) * (scale(value) - lowest) / (highest - lowest), 1)

    x_values = [x for x in ticks(first, last, 5 if width < 400 else 7) if first <= x <= last and x == int(x)]
    return LineChart(
        title, width, height, left, right, top, bottom, first, last, logarithmic,
        x_ticks=[Tick(x_of(x), label) for x, label in zip(x_values, tick_labels(x_values), strict=True)],
        y_ticks=[Tick(y_of(y), label) for y, label in zip(y_values, labels, strict=True)],
        curves=[_curve(line, x_of, y_of) for line in series],
    )  # fmt: skip


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten that enclose low..high, with 2 and 5 in between if there are few enough."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    between = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    start = max(index for index, mark in enumerate(between) if mark <= low * (1 + 1e-9))
    end = min(index for index, mark in enumerate(between) if mark >= high * (1 - 1e-9))
    fine, step = between[start : end + 1], math.ceil((last - first) / (most + 1))
    found = fine if len(fine) <= most + 2 else [10.0**power for power in range(first, last + step, step)]
    return [float(f"{mark:.3g}") for mark in found]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers that enclose low..high: at least two, at most about `most`."""
    largest = max(abs(low), abs(high))
    # Treat values that differ only by rounding errors as one value, which needs an axis, too.
    span = high - low if high - low > 1e-9 * largest else largest
    span = span if span > TINIEST else 1.0
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels with the same number of decimals; thousands as k, millions as M; powers of ten if all are tiny."""
    largest = max((abs(value) for value in values), default=0.0)
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if largest >= limit:
            unit = 1e6 if letter == "M" else 1e3
            return [f"{value / unit:g}{letter}" if value else "0" for value in values]
    if 0 < largest < 1e-3:
        return [f"{value:g}" for value in values]
    decimals = max((len(f"{value:.6f}".rstrip("0").partition(".")[2]) for value in values), default=0)
    return [f"{value:.{decimals}f}" for value in values]


def moving_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Mean of the finite values among the `window` points around each point; fewer at the ends."""
    half, means = window // 2, []
    values = [y for _, y in points]
    all_finite = all(map(math.isfinite, values))
    for index, (x, _) in enumerate(points):
        near = values[max(0, index - half) : index + half + 1]
        if not all_finite:
            near = [y for y in near if math.isfinite(y)]
        means.append((x, sum(near) / len(near) if near else math.nan))
    return means


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most about `MAX_POINTS` points: the lowest and highest of each group of neighbors, and the ends."""
    if len(points) <= MAX_POINTS:
        return points
    groups = MAX_POINTS // 2
    edges = [len(points) * number // groups for number in range(groups + 1)]
    keep = {0, len(points) - 1}
    for start, end in pairwise(edges):
        finite = [(points[index][1], index) for index in range(start, end) if math.isfinite(points[index][1])]
        keep |= {min(finite)[1], max(finite)[1]} if finite else {start}  # keep gaps
    return [points[index] for index in sorted(keep)]


def _curve(line: Series, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> Curve:
    points = thinned(line.points)
    parts, pen_up = [], True
    for step, value in points:
        if not math.isfinite(value):
            pen_up = True
            continue
        parts.append(f"{'M' if pen_up else 'L'}{x_of(step):g} {y_of(value):g}")
        pen_up = False
    shown = [(x, y) for x, y in points if math.isfinite(y)]
    style = line.look if line.tint is None else f"{line.look} tint-{line.tint % TINTS}"
    dots = [(x_of(x), y_of(y)) for x, y in shown] if line.look == "check" or len(shown) == 1 else []
    return Curve(line.name, style, "".join(parts), dots, [f"{x:g}" for x, _ in shown], [f"{y:.4g}" for _, y in shown])


@dataclass(frozen=True)
class Strip:
    """A value with its interval on a horizontal axis, as percentages of the axis' length."""

    low: float
    value: float
    high: float
    zero: float


@dataclass(frozen=True)
class StripAxis:
    """The shared axis of several strips, from the first tick to the last."""

    ticks: list[Tick]
    first: float
    last: float

    def place(self, value: float) -> float:
        """Position of a value in percent."""
        return round(100 * (value - self.first) / (self.last - self.first), 2)

    def strip(self, value: float, interval: Sequence[float]) -> Strip | None:
        """A value and its interval on this axis; None if not finite."""
        if not all(map(math.isfinite, (value, *interval))):
            return None
        return Strip(self.place(interval[0]), self.place(value), self.place(interval[1]), self.place(0.0))


def strip_axis(values: Sequence[float], *, share: bool, signed: bool = False) -> StripAxis:
    """An axis that contains all finite values and zero. Shares are labelled in percent; unsigned ones end at 100%."""
    finite = [value for value in values if math.isfinite(value)]
    enclosing = ticks(min([*finite, 0.0]), max([*finite, 0.0]), 5)
    marks = [0.0, 0.25, 0.5, 0.75, 1.0] if share and not signed else enclosing
    texts = [f"{mark * 100:g}" for mark in marks] if share else tick_labels(marks)
    if signed:
        texts = [f"+{text}" if mark > 0 else text.replace("-", "−") for mark, text in zip(marks, texts, strict=True)]
    elif share:
        texts = [f"{text}%" for text in texts]
    axis = StripAxis([], marks[0], marks[-1])
    placed = [Tick(axis.place(mark), text) for mark, text in zip(marks, texts, strict=True)]
    return replace(axis, ticks=placed)


# Histograms of whole numbers, with round bin edges, from counts of each value.

BINS = 16
FILL_BINS = 10
WIDE = 40  # from this ratio of maximum to median, bin widths double
ROUND = (1, 2, 5, 10)


@dataclass(frozen=True)
class Bin:
    """Number of values from `low` to `high`, inclusive."""

    low: int
    high: int
    count: int

    @property
    def label(self) -> str:
        """`40–49`, `7`."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"


def histogram(values: Counter[int], bins: int = BINS) -> list[Bin]:
    """About `bins` bins at most: of equal width, or of doubling width if a few values are far above the rest."""
    present = [value for value, count in values.items() if count]
    if not present:
        return []
    low, high = min(present), max(present)
    if high > WIDE * max(1, quantile(values, 0.5)):
        edges = [0, *(2**power for power in range(max(0, low.bit_length() - 1), high.bit_length() + 1))]
        return _counted(values, [edge for edge in edges if edge > 0 or low == 0])
    raw = max(1.0, (high - low + 1) / bins)
    power = 10 ** math.floor(math.log10(raw))
    width = next(step * power for step in ROUND if step * power >= raw)
    return _counted(values, list(range(low // width * width, high + width + 1, width)))


def fill_histogram(percents: Counter[int]) -> list[Bin]:
    """Bins of ten percent. Rows over the pack size get a separate bin."""
    edges = [*range(0, 100, 100 // FILL_BINS), 101]
    over = max(percents, default=0)
    return _counted(percents, [*edges, over + 1] if over > 100 else edges)


def quantile(values: Counter[int], share: float) -> int:
    """The smallest value that is at least as large as this share of all values; 0 without values."""
    needed, seen = share * values.total(), 0
    for value in sorted(values):
        seen += values[value]
        if seen >= needed:
            return value
    return 0


def _counted(values: Counter[int], edges: list[int]) -> list[Bin]:
    """Bins between the edges (the last one inclusive), up to the last non-empty bin."""
    counts, _ = np.histogram(list(values), edges, weights=list(values.values()))
    last = max(np.flatnonzero(counts), default=0)
    return [Bin(edges[i], edges[i + 1] - 1, int(counts[i])) for i in range(last + 1)]


# Lay out histograms as bar charts, for both the report and the inspection.

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
