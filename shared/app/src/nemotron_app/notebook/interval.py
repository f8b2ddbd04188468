"""The mean of a few runs, with Student's interval.

interval([0.50, 0.53, 0.52])     # Interval(mean=0.5166..., low=0.4787..., high=0.5546...)
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from nemotron_shared.system.errors import UserError

QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip
"""The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom."""


class Interval(NamedTuple):
    """A mean and the bounds of its 95% interval."""

    mean: float
    low: float
    high: float


def interval(values: Iterable[float]) -> Interval:
    """Mean and 95% interval of runs that differ in their seed alone.

    Student's interval, and not the bootstrap of evaluations: that resamples hundreds of questions, and of three to ten
    runs gives intervals far too narrow. For the difference of two settings, take the differences of runs with the same
    seed.

    Args:
        values: one for each run; 2 to 31 of them.

    Raises:
        UserError: too few or too many values, or one that is not finite.
    """
    found = [float(value) for value in values]
    if not 2 <= len(found) <= len(QUANTILES) + 1:
        raise UserError(f"an interval of {len(found)} values", f"give 2 to {len(QUANTILES) + 1}, one for each seed")
    if not all(map(math.isfinite, found)):
        raise UserError(f"an interval of {found}", "all values have to be finite")
    mean = math.fsum(found) / len(found)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1))
    half = QUANTILES[len(found) - 2] * deviation / math.sqrt(len(found))
    return Interval(mean, mean - half, mean + half)
