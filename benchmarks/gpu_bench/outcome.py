"""Outcome of a case: figures, or the reason why it was not measured."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

WARM_UP = 0.2
MOST_WARM_UP = 20

Status = Literal["done", "cut short", "failed", "not run"]


@dataclass
class Outcome:
    """`figures` are set if it was done or cut short; `reason` unless it was done."""

    name: str
    status: Status
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """No error in our code; cases that were not run have a reason."""
        return self.status != "failed"


class Speed(NamedTuple):
    """Speed of the steps after the warm-up; medians over steps."""

    steps: int
    warm_up: int
    step_seconds: float
    tokens_per_step: float
    tokens_per_second: float


def speed_of(entries: Sequence[dict[str, Any]]) -> Speed | None:
    """Speed from the training entries of a metrics.jsonl, or None for too few steps.

    A step lasts from the end of the previous one to its own end. The first fifth (20 steps at most) is warm-up, in
    which kernels are compiled and tuned. Times are in whole milliseconds.
    """
    steps = [entry for entry in entries if "loss" in entry]
    warm_up = max(1, min(MOST_WARM_UP, int(WARM_UP * len(steps))))
    kept = steps[warm_up - 1 :]
    pairs = list(pairwise(kept))
    if len(pairs) < 2:
        return None
    seconds = [after["seconds"] - before["seconds"] for before, after in pairs]
    tokens = [after["tokens"] - before["tokens"] for before, after in pairs]
    rates = [count / max(one, 1e-3) for count, one in zip(tokens, seconds, strict=True)]
    return Speed(len(pairs), warm_up, *(statistics.median(values) for values in (seconds, tokens, rates)))


def losses_of(entries: Sequence[dict[str, Any]]) -> list[float]:
    """The training loss of each step."""
    return [entry["loss"] for entry in entries if "loss" in entry]


class LossGap(NamedTuple):
    """Difference between the losses of two runs over the same rows."""

    steps: int
    first: float
    """Relative difference at the first step, when the weights are still the same."""
    largest: float
    """Largest relative difference of any step."""
    ends: tuple[float, float]
    """Mean of the last tenth of both."""


def loss_gap(one: Sequence[float], other: Sequence[float]) -> LossGap | None:
    """Compare the steps that both have; None without common steps."""
    steps = min(len(one), len(other))
    if not steps:
        return None
    gaps = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one, other, strict=False)]
    last = max(1, steps // 10)
    ends = (statistics.fmean(one[steps - last : steps]), statistics.fmean(other[steps - last : steps]))
    return LossGap(steps, gaps[0], max(gaps), ends)
