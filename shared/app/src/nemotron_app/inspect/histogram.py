"""Histograms of whole numbers, with round bin edges, from counts of each value."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

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
