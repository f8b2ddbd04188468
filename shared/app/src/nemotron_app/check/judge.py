"""Judge readings against expectations: pass, watch, fail, or not judged, which never counts as a pass."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

from nemotron_app.check.expectations import Expectation
from nemotron_app.check.readings import Readings
from nemotron_app.check.target import Target, is_quiet

Verdict = Literal["pass", "watch", "fail", "not judged"]
EARLIEST = 10
"""A log that starts after this step cannot show how the training began."""
BEFORE = 5
"""Number of values of the subtracted metric to average, up to the same step."""

LAUNCHERS = (
    {"{head_log}": "ray-head.log", "{worker_logs}": "ray-worker-*.log", "{driver_log}": "ray-driver.log"},
    {"{head_log}": "head.log", "{worker_logs}": "worker-*.log", "{driver_log}": "driver.log"},
)
"""What ray.sub and our own launcher call the logs that remedies name."""

NO_NUMBER = (
    "what was trained since then is lost: go on from a checkpoint before it, with a lower optimizer.lr; "
    "where it is so from the first step, look at the data and the model's weights"
)


@dataclass(frozen=True)
class Judged:
    """The result for one expectation. `why` explains the verdict, or its absence."""

    expectation: Expectation
    verdict: Verdict
    value: float | None
    why: str
    remedy: str


class NotYet(Exception):
    """No verdict is possible yet, for the given reason."""


@dataclass(frozen=True)
class Situation:
    """Everything that expectations are judged by.

    Attributes:
        over: no further step will follow.
        silent: nothing was written for a long time, and the state of the run is unknown.
    """

    target: Target
    readings: Readings
    over: bool
    silent: bool

    @classmethod
    def of(cls, target: Target, readings: Readings) -> "Situation":
        """Determine whether the run is still active."""
        written = [moment for kind, moment in readings.newest.items() if kind != "ENDED"]
        done = readings.steps is not None and readings.step >= readings.steps
        over = target.state in {"finished", "stopped"} or "ENDED" in readings.newest or done
        unknown = not over and target.state is None
        return cls(target, readings, over, unknown and bool(written) and is_quiet(max(written)))


def judge(expectation: Expectation, situation: Situation) -> Judged:
    """Judge one expectation."""
    remedy = _filled_in(expectation.remedy.strip(), situation)
    try:
        value = _value(expectation, situation)
    except NotYet as reason:
        return Judged(expectation, "not judged", None, _filled_in(str(reason), situation), remedy)
    missed = (expectation.line or expectation.how == "count") and not value and expectation.within.at_least
    if missed and not situation.over and not situation.silent:
        return Judged(expectation, "not judged", value, "not seen yet", remedy)
    if math.isnan(value) and situation.readings.step:
        return Judged(expectation, "fail", value, "a number that is none", NO_NUMBER)
    verdict: Verdict = "fail"
    if expectation.within.hold(value):
        verdict = "pass"
    elif expectation.watch is not None and expectation.watch.hold(value):
        verdict = "watch"
    seen = situation.readings.seen.get(expectation.line or "")
    return Judged(expectation, verdict, value, seen if seen and verdict != "pass" else "", remedy)


def _filled_in(text: str, situation: Situation) -> str:
    """Fill in the family, and the log names that the run's launcher uses."""
    theirs, ours = LAUNCHERS
    named = ours if any(name in situation.readings.newest for name in ours.values()) else theirs
    for place, name in {"{family}": situation.target.family, **named}.items():
        text = text.replace(place, name)
    return text


def overall(judged: Sequence[Judged]) -> Verdict:
    """The worst verdict among those judged."""
    found = {one.verdict for one in judged}
    order: tuple[Verdict, ...] = ("fail", "watch", "pass")
    return next((verdict for verdict in order if verdict in found), "not judged")


def _value(expectation: Expectation, situation: Situation) -> float:
    """The value to compare with the limits. NaN if any value in it is NaN, since the weights are then lost.

    Raises:
        NotYet: no or too few values.
    """
    readings = situation.readings
    if expectation.line is not None:
        if "log" not in readings.newest:
            raise NotYet(expectation.told_by or "no log was given")
        count = readings.counts[expectation.line]
        if not count and not expectation.within.at_least and not (readings.libraries or readings.counts):
            raise NotYet("no line of a library that is known: that bad ones are absent says nothing")
        return count
    if expectation.file is not None:
        return _of_files(expectation, situation)
    points = _points(expectation, situation)
    if readings.step < expectation.at_step:
        ended = "ended at" if situation.over else "is at"
        raise NotYet(f"judged from step {expectation.at_step} on; this one {ended} step {readings.step}")
    if expectation.how == "first" and points[0][0] > EARLIEST:
        raise NotYet(f"what was read begins at step {points[0][0]}")
    values = [value for _, value in points]
    if not all(map(math.isfinite, values)):
        return math.nan
    if expectation.how in {"first", "last"}:
        return mean(values[: expectation.window] if expectation.how == "first" else values[-expectation.window :])
    return REDUCTIONS[expectation.how](values)


def _points(expectation: Expectation, situation: Situation) -> list[tuple[int, float]]:
    """Values by step; for an evaluation, its single score."""

    def values_of(metric: str) -> list[tuple[int, float]]:
        scores = situation.target.scores
        return situation.readings.values(metric) or ([(0, scores[metric])] if metric in scores else [])

    assert expectation.metric is not None
    points = values_of(expectation.metric)
    if expectation.minus is not None:
        others, above = values_of(expectation.minus), points
        points = []
        for step, value in above:
            before = [other for at, other in others if at <= step][-BEFORE:]
            if before:
                points.append((step, value - mean(before)))
    if not points:
        names = " and ".join(filter(None, (expectation.metric, expectation.minus)))
        raise NotYet(f"no {names} in what was read" + (f": {expectation.told_by}" if expectation.told_by else ""))
    return points


def _change(values: list[float]) -> float:
    third = len(values) // 3
    if not third:
        raise NotYet(f"{len(values)} values are too few to see a change")
    return mean(values[-third:]) - mean(values[:third])


def _rise(values: list[float]) -> float:
    """Rise within the last count that has at least two readings. A value below the previous one starts a new count."""
    start, end = 0, len(values)
    while end:
        start = next((at for at in range(end - 1, 0, -1) if values[at] < values[at - 1]), 0)
        if end - start > 1:
            return values[end - 1] - values[start]
        end = start
    raise NotYet("one reading only; look again in a minute")


REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "lowest": min,
    "highest": max,
    "mean": mean,
    "median": median,
    "sum": sum,
    "change": _change,
    "rise": _rise,
}


def _of_files(expectation: Expectation, situation: Situation) -> float:
    name = expectation.file or ""
    newest = situation.readings.newest.get(name)
    if expectation.how == "count":
        if newest is None and not situation.target.folders:
            raise NotYet(expectation.told_by or f"give the folder that {name} is to be in")
        return 0 if newest is None else 1
    if newest is None:
        raise NotYet(expectation.told_by or f"no file of {name} was given")
    if situation.over:
        raise NotYet("the run is over")
    return max(0.0, (time.time() - newest) / 60)
