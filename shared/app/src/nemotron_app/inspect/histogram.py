"""Histograms of whole numbers: bins with round edges, from counts of each value."""

import math
from collections import Counter
from dataclasses import dataclass

BINS = 16
FILL_BINS = 10
WIDE = 40  # from this ratio of the longest to the median on, bins double in width
STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Bin:
    """How many values lie from `low` to `high`, both included."""

    low: int
    high: int
    count: int

    @property
    def label(self) -> str:
        """`40–49`, `7`."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"


def histogram(values: Counter[int], bins: int = BINS) -> list[Bin]:
    """At most about `bins` bins, of equal width, or of doubling width where a few values are far above the rest."""
    present = sorted(value for value, count in values.items() if count)
    if not present:
        return []
    low, high = present[0], present[-1]
    if high > WIDE * max(1, quantile(values, 0.5)):
        edges = [0, *(2**power for power in range(max(0, low.bit_length() - 1), high.bit_length() + 1))]
        edges = [edge for edge in edges if edge > 0 or low == 0]
    else:
        width = _round_width((high - low + 1) / bins)
        edges = list(range(low // width * width, high + width + 1, width))
    return _counted(values, edges)


def fill_histogram(percents: Counter[int]) -> list[Bin]:
    """Bins of ten per cent; what is over the pack size has a bin of its own."""
    edges = [*range(0, 100, 100 // FILL_BINS), 101]
    over = max(percents, default=0)
    return _counted(percents, [*edges, over + 1] if over > 100 else edges)


def quantile(values: Counter[int], share: float) -> int:
    """The smallest value that at least this share of all values does not exceed; 0 for no values."""
    needed, seen = share * values.total(), 0
    for value in sorted(values):
        seen += values[value]
        if seen >= needed:
            return value
    return 0


def _round_width(raw: float) -> int:
    if raw <= 1:
        return 1
    power = 10 ** math.floor(math.log10(raw))
    return next(step * power for step in (*STEPS, 10) if step * power >= raw)


def _counted(values: Counter[int], edges: list[int]) -> list[Bin]:
    counts = Counter[int]()
    ordered, position = sorted(values), 0
    for value in ordered:
        while position + 2 < len(edges) and value >= edges[position + 1]:
            position += 1
        counts[position] += values[value]
    found = [Bin(edges[i], edges[i + 1] - 1, counts[i]) for i in range(len(edges) - 1)]
    while found and found[-1].count == 0 and len(found) > 1:
        found.pop()
    return found
