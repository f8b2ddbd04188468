"""Confidence intervals: Wilson's for shares, the paired bootstrap for differences and for bits per byte."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Z95 = 1.959963984540054
RESAMPLES = 2000

Statistic = Callable[[np.ndarray], np.ndarray]


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95% interval of a share of `n` independent trials."""
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(rows: np.ndarray, statistic: Statistic, seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of a statistic over resampled rows.

    Args:
        rows: (n, columns), one row per item.
        statistic: maps sums over items, (resamples, columns), to (resamples,).
    """
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES)
    low, high = np.percentile(statistic(counts @ rows / len(rows)), [2.5, 97.5])
    return float(low), float(high)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of a mean of independent values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
