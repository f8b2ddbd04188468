"""Numbers as people read them: 0.4125 is 41.2%, 1234567 tokens are 1.2M, 185 seconds are 3 min 5 s."""

import math
from collections.abc import Sequence

SHARES = {"exact_match", "acc"}
METRIC_NAMES = {"exact_match": "exact match", "acc": "accuracy", "bits_per_byte": "bits per byte"}
MINUS = "−"
NOT_FINITE = "not finite"


def metric_name(metric: str) -> str:
    """A metric's name in words."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def value(metric: str, number: float) -> str:
    """A score: a share in per cent, anything else with three decimals."""
    if not math.isfinite(number):
        return NOT_FINITE
    return f"{number:.1%}" if metric in SHARES else f"{number:.3f}"


def interval(metric: str, bounds: Sequence[float]) -> str:
    """`36.2% to 45.9%`."""
    return f"{value(metric, bounds[0])} to {value(metric, bounds[1])}"


def change(metric: str, difference: float) -> str:
    """A signed difference: of shares in percentage points."""
    return f"{_change_number(metric, difference)} points" if metric in SHARES else _change_number(metric, difference)


def change_interval(metric: str, bounds: Sequence[float]) -> str:
    """`+36.2 to +45.9`."""
    return f"{_change_number(metric, bounds[0])} to {_change_number(metric, bounds[1])}"


def amount(metric: str, difference: float) -> str:
    """The size of a difference: `39.0 points`, `0.108 bits per byte`."""
    unit = "points" if metric in SHARES else metric_name(metric)
    return f"{amount_number(metric, difference)} {unit}"


def amount_number(metric: str, difference: float) -> str:
    """The size of a difference without its unit."""
    return _change_number(metric, abs(difference)).lstrip("+")


def _change_number(metric: str, difference: float) -> str:
    if not math.isfinite(difference):
        return NOT_FINITE
    text = f"{difference * 100:+.1f}" if metric in SHARES else f"{difference:+.3f}"
    return text.replace("-", MINUS) if float(text) else text.lstrip("+-")


def count(number: float) -> str:
    """`1,234,567`."""
    return f"{number:,.0f}"


def short_count(number: float) -> str:
    """`1.2M`."""
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            scaled = number / (1e3 if letter == "k" else limit)
            return f"{scaled:.1f}{letter}" if scaled < 100 else f"{scaled:.0f}{letter}"
    return count(number)


def figure(number: float) -> str:
    """Any measurement with about four digits."""
    if not math.isfinite(number):
        return NOT_FINITE
    if number == int(number) and abs(number) < 1e15:
        return count(number)
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def duration(seconds: float | None) -> str:
    """`0.8 s`, `58 s`, `3 min 5 s`, `2 h 10 min`; a dash where nobody measured it."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = {"h": hours, "min": minutes, "s": 0 if hours else rest}
    return " ".join(f"{number} {unit}" for unit, number in parts.items() if number)


def moment(iso: str) -> str:
    """`2026-01-31 12:00 UTC`."""
    return iso[:16].replace("T", " ") + " UTC"
