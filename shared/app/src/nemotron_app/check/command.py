"""`nemotron check`: compare a run with what a healthy one shows, while it runs or afterwards.

nemotron check sft                                      the newest super3-sft-model, or the run that is making it
nemotron check super3-rl-model-891fc106f3a7 --watch     check again every half minute until it ends
nemotron check 9453356-logs logs/exp_001 --expect rl/nano3     logs of a job that was started in another way
nemotron check /models/super49b                         facts about a model folder: type, class, block_configs
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import mean, median
from typing import Any, Literal

import click

from nemotron_app.check.expectations import Expectation, Expected, Limits, choose
from nemotron_app.check.readings import Readings, gpus_now, read
from nemotron_app.check.target import Target, find, is_quiet, merged, probe
from nemotron_app.store_options import Look, store_options
from nemotron_app.wording import table_lines
from nemotron_shared.system.console import finding_lines, renew, tell
from nemotron_shared.system.errors import Finding, Level, printable

# Verdicts: pass, watch, fail, or not judged, which never counts as a pass.

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
    "training since then is lost: continue from a checkpoint before it, with a lower optimizer.lr; "
    "if it happens from the first step on, check the data and the model's weights"
)


LEVELS: dict[Verdict, Level] = {"pass": "passed", "watch": "warning", "fail": "problem", "not judged": "skipped"}


@dataclass(frozen=True)
class Judged:
    """The result for one expectation. The finding explains the verdict, or its absence."""

    expectation: Expectation
    verdict: Verdict
    value: float | None
    finding: Finding


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

    @property
    def progress(self) -> str:
        """The last step, and how many there will be."""
        train = (self.target.config or {}).get("train")
        steps = self.readings.steps or (train.get("train_iters") if isinstance(train, Mapping) else None)
        return f"{self.readings.step} of {steps}" if steps else str(self.readings.step)

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
    readings = situation.readings
    theirs, ours = LAUNCHERS
    logs = ours if any(name in readings.newest for name in ours.values()) else theirs

    def filled_in(text: str) -> str:
        for place, name in {"{family}": situation.target.family, **logs}.items():
            text = text.replace(place, name)
        return text

    def judged(verdict: Verdict, value: float | None, why: str = "", remedy: str | None = None) -> Judged:
        fell = value is not None and value < 0 and expectation.instead_if_fell
        advised = (remedy or fell or expectation.instead).strip()
        advice = filled_in(advised) if verdict in ("watch", "fail") else None
        return Judged(expectation, verdict, value, Finding(LEVELS[verdict], why, advice, expectation.id))

    try:
        value = _value(expectation, situation)
    except NotYet as reason:
        return judged("not judged", None, filled_in(str(reason)))
    missed = (expectation.line or expectation.how == "count") and not value and expectation.within.at_least
    if missed and not situation.over and not situation.silent:
        return judged("not judged", value, "not seen yet")
    if math.isnan(value) and readings.step:
        return judged("fail", value, "not a finite number", NO_NUMBER)
    is_to_rise = expectation.within.at_least is not None and expectation.watch != Limits()
    if expectation.how == "change" and is_to_rise and not any(number for _, number in _points(expectation, situation)):
        return judged("fail", value, f"{' less '.join(_metrics(expectation))} was 0 at every step")
    if expectation.within.hold(value):
        return judged("pass", value)
    verdict: Verdict = "watch" if expectation.watch is not None and expectation.watch.hold(value) else "fail"
    return judged(verdict, value, readings.seen.get(expectation.line or "", ""))


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
        return _file_value(expectation, situation)
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
        names = " and ".join(_metrics(expectation))
        raise NotYet(f"no {names} in what was read" + (f": {expectation.told_by}" if expectation.told_by else ""))
    return points


def _metrics(expectation: Expectation) -> list[str]:
    """Names of the metric and of the one that is subtracted, if any."""
    return [name for name in (expectation.metric, expectation.minus) if name]


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


def _file_value(expectation: Expectation, situation: Situation) -> float:
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


EVERY = 30.0
SHARE_OF_READING = 0.2
"""With `--watch`, spend at most this share of the time on reading, however large the logs are."""


@click.command("check", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("wanted", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--expect", metavar="STAGE/NAME|FILE", help="the expectations to judge by; without it the run's config tells"
)
@click.option("--watch", is_flag=True, help="check again until the run ends")
@click.option("--every", type=click.FloatRange(min=0.1), default=EVERY, show_default=True, metavar="S")
@store_options
def command(look: Look, wanted: tuple[str, ...], expect: str | None, watch: bool, every: float) -> int:
    """See the module docstring."""
    shown: tuple[Any, ...] = ()
    while True:
        began = time.monotonic()
        target = merged([find(one, look) for one in wanted])
        if target.model is not None and expect is None:
            facts, lines = probe(target.model)
            look.tell({"model": str(target.model), **facts}, f"{target.title}: {target.kind}", *lines)
            return 0 if facts["ok"] else 1
        expected = choose(expect, target.stage, target.config)
        readings = read(target.files, [one.line for one in expected.content.expectations if one.line])
        asked_for = {one.metric for one in expected.content.expectations} - readings.moments.keys()
        readings.notes += target.notes
        if "gpu_utilization" in asked_for and target.state == "running" and target.is_here:
            readings.moments["gpu_utilization"] = gpus_now()
        situation = Situation.of(target, readings)
        judged = [judge(one, situation) for one in expected.content.expectations]
        now = tuple((one.expectation.id, one.verdict) for one in judged)
        if look.json:
            document = _document(situation, expected, judged)
            # one line per check, so that a program can read a stream of them
            finite = json.loads(json.dumps(document), parse_constant=lambda _: None)  # JSON has no NaN
            tell(json.dumps(finite, ensure_ascii=True, indent=None if watch else 2))
        elif now != shown:
            tell("\n".join(_lines(situation, expected, judged)))
        if not watch or situation.over or situation.silent:
            return 0 if overall(judged) in {"pass", "watch"} else 1
        shown = now
        if not look.json:
            renew(f"{datetime.now():%H:%M:%S}  step {situation.progress}  {overall(judged)}")
        time.sleep(max(every, (time.monotonic() - began) / SHARE_OF_READING))


def _lines(situation: Situation, expected: Expected, judged: list[Judged]) -> list[str]:
    """Text output: the run, one line per expectation, and the remedies of those that failed."""
    target, readings = situation.target, situation.readings
    state = target.state or ("over" if situation.over else "silent for half an hour" if situation.silent else "")
    step = f"; step {situation.progress}" if target.files else ""
    lines = [f"{target.title}: {', '.join(filter(None, (target.kind, state)))}{step}"]
    read_from = [*readings.libraries, *(["the artifact's scores"] if target.scores else [])]
    in_files = f", in {len(target.files)} file{'s' if len(target.files) > 1 else ''}" if target.files else ""
    lines += [f"read: {', '.join(read_from) or 'nothing that is known'}{in_files}"]
    lines += [f"expected: {expected.content.title} ({expected.path})", ""]
    rows = [
        (one.verdict, one.expectation.id, _found(one, readings), str(one.expectation.within), one.expectation.what)
        for one in judged
    ]
    headings = ("verdict", "expectation", "found", "expected", "what")
    lines += table_lines(headings, rows, right=("found",), spare=("expected",), wrapped=True)
    for one in judged:
        if one.verdict != "pass":
            found = "  found: " if one.verdict != "not judged" and one.finding.message else "  "
            lines += ["", f"{one.verdict}: {one.expectation.id}"]
            lines += [line for line in finding_lines(one.finding, found) if line.strip()]
    verdicts = [one.verdict for one in judged]
    counts = [f"{verdicts.count(kind)} {kind}" for kind in ("pass", "watch", "fail", "not judged") if kind in verdicts]
    lines += ["", *(f"note: {note}" for note in readings.notes), f"verdict: {overall(judged)} ({', '.join(counts)})"]
    return [printable(line, keep="\n") for line in lines]


def _found(one: Judged, readings: Readings) -> str:
    """The value. For counts with a known total, such as rollouts, also the progress: `540 of 2,048 (26 %)`."""
    metric = one.expectation.metric
    have, wanted = (readings.moments.get(name) for name in (str(metric), f"{metric}_wanted"))
    if one.value is not None and have and wanted and wanted[-1]:
        return f"{have[-1]:,.0f} of {wanted[-1]:,.0f} ({100 * have[-1] / wanted[-1]:.0f} %)"
    return "" if one.value is None else f"{one.value:.4g}"


def _document(situation: Situation, expected: Expected, judged: list[Judged]) -> dict[str, Any]:
    """JSON output. Non-finite numbers become null, because JSON cannot represent them."""
    return {
        "run": situation.target.title,
        "kind": situation.target.kind,
        "state": situation.target.state,
        "over": situation.over,
        "step": situation.readings.step,
        "steps": situation.readings.steps,
        "read": situation.readings.libraries,
        "files": [str(file) for file in situation.target.files],
        "expectations": str(expected.path),
        "verdict": overall(judged),
        "judged": [
            {
                "id": one.expectation.id,
                "what": one.expectation.what,
                "verdict": one.verdict,
                "value": one.value if one.value is not None and math.isfinite(one.value) else None,
                "expected": str(one.expectation.within),
                "why": one.finding.message,
                "remedy": one.finding.remedy,
            }
            for one in judged
        ],
        "notes": situation.readings.notes,
    }
