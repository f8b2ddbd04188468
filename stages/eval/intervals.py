"""Confidence intervals: Wilson's for shares, Tango's for their paired differences, the bootstrap for the rest."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Z95 = 1.959963984540054
RESAMPLES = 2000
BISECTIONS = 50  # halvings of an interval of length 2: beyond what a float can tell apart

Statistic = Callable[[np.ndarray], np.ndarray]


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95% interval of a share of `n` independent trials."""
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def tango(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95% score interval of the difference of two shares of the same `n` trials.

    Tango, T. (1998): Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design. Statistics in Medicine 17, 891-908. Its bounds are the differences that the score test
    does not reject, so it has a width where few trials changed, or none.

    Args:
        gained: trials that succeeded the second time only.
        lost: trials that succeeded the first time only.
    """
    difference = (gained - lost) / n

    def bound(outside: float) -> float:
        inside = difference
        for _ in range(BISECTIONS):
            middle = (inside + outside) / 2
            if abs(paired_score(gained, lost, n, middle)) <= Z95:
                inside = middle
            else:
                outside = middle
        return inside

    return bound(-1.0), bound(1.0)


def paired_score(gained: int, lost: int, n: int, difference: float) -> float:
    """Tango's statistic: in how many of its standard errors the observed difference is off from `difference`."""
    off = gained - lost - n * difference
    # the likeliest probability of losing a trial, if `difference` is true: the larger root of a x^2 + b x + c
    a, b = 2 * n, -gained - lost + (2 * n - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    probability = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * probability + difference * (1 - difference))
    if off == 0:
        return 0.0
    return off / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, off)


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
