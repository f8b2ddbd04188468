"""What training logged, as figures and as charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from nemotron_app.report import charts, wording
from nemotron_app.report.charts import LineChart, Point, Series, line_chart, moving_mean

Entries = Sequence[dict[str, Any]]
LARGE = {"width": 1030, "height": 280}
SMALL = {"width": 310, "height": 140}
SMALL_OF_MANY = {"width": 230, "height": 140}
LAST_POINTS = 10
REWARD_PREFIX, REWARD_SUFFIX = "rewards/", "/mean"
# Metric and title of the small charts. A schedule is exact: its mean would round the corners off.
SCHEDULES = {"lr": "Learning rate"}
LOSS_PANELS = SCHEDULES | {"grad_norm": "Gradient norm"}
REWARD_PANELS = {
    "zero_advantage_fraction": "Groups with equal rewards",
    "completion_length": "Tokens per answer",
    "truncated_fraction": "Answers cut off",
    "entropy": "Entropy",
}


@dataclass(frozen=True)
class Facts:
    """A training run in numbers; None where nothing was logged.

    Attributes:
        seconds: time in the training loop; of a run that was resumed, as far as its log still holds it.
        tokens_per_second: tokens per second of that time.
        loss, reward: mean of the last `LAST_POINTS` logged values, because one step says little.
        valid_loss, valid_reward: the last validation.
        not_finite: logged values of loss or reward that were NaN or infinite.
    """

    steps: int | None = None
    tokens: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    reward: float | None = None
    valid_loss: float | None = None
    valid_reward: float | None = None
    not_finite: int = 0


@dataclass(frozen=True)
class Panel:
    """One drawing with its caption."""

    title: str
    note: str
    chart: LineChart


@dataclass(frozen=True)
class Drawings:
    """The charts of one stage: a large one, where its figure was logged, and small ones."""

    large: Panel | None
    small: list[Panel] = field(default_factory=list)


def facts(entries: Entries) -> Facts:
    """The figures of one run."""
    if not entries:
        return Facts()
    seconds = _seconds(entries)
    tokens = _last(entries, "tokens")
    values = [entry[name] for entry in entries for name in ("loss", "reward") if name in entry]
    return Facts(
        steps=max(entry["step"] for entry in entries),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if tokens and seconds else None,
        loss=_last_mean(entries, "loss"),
        reward=_last_mean(entries, "reward"),
        valid_loss=_last(entries, "valid_loss"),
        valid_reward=_last(entries, "valid_reward"),
        not_finite=sum(not math.isfinite(value) for value in values),
    )


def drawings(entries: Entries) -> Drawings:
    """Loss or, where there is one, reward at large; what explains it at small."""
    if _points(entries, "reward"):
        large = _panel("Reward", _smoothed(entries, "reward", "valid_reward"), LARGE, from_zero=True)
        names = _reward_parts(entries) | REWARD_PANELS
    else:
        large = _panel("Loss", _smoothed(entries, "loss", "valid_loss"), LARGE)
        names = LOSS_PANELS
    lines = {title: _smoothed(entries, name) for name, title in names.items()}
    lines["Tokens per second"] = smoothed(_speed(entries))
    drawn = {title: series for title, series in lines.items() if any(line.points for line in series)}
    size = SMALL if len(drawn) <= 3 else SMALL_OF_MANY
    small = [_panel(title, series, size, from_zero=True) for title, series in drawn.items()]
    return Drawings(large, [panel for panel in small if panel])


def smoothed(points: list[Point]) -> list[Series]:
    """The points as they are, faint, under their moving mean; alone where they are too few for one."""
    window = window_of(len(points))
    if len(points) < 2 * window:
        return [Series("as logged", points)]
    return [Series("as logged", points, "raw"), Series(f"mean of {window} points", moving_mean(points, window), "mean")]


def window_of(count: int) -> int:
    """An odd window of a twentieth of the run, at least 5 points."""
    return max(5, count // 20 | 1)


def _smoothed(entries: Entries, name: str, check: str | None = None) -> list[Series]:
    points = _points(entries, name)
    lines = [Series("as logged", points)] if name in SCHEDULES else smoothed(points)
    checks = [Series("validation", _points(entries, check), "check")] if check else []
    return [line for line in [*lines, *checks] if line.points]


def _reward_parts(entries: Entries) -> dict[str, str]:
    """Metric and title of each reward function; one alone would repeat the large chart."""
    names = sorted({name for entry in entries for name in entry if name.startswith(REWARD_PREFIX)})
    titles = {name: f"Reward: {name.removeprefix(REWARD_PREFIX).removesuffix(REWARD_SUFFIX)}" for name in names}
    return titles if len(titles) > 1 else {}


def _speed(entries: Entries) -> list[Point]:
    """Tokens per second between one logged line and the next; validation and restarts do not count."""
    points = []
    timed = [entry for entry in entries if "tokens" in entry and "seconds" in entry]
    for before, after in pairwise(timed):
        tokens, seconds = after["tokens"] - before["tokens"], after["seconds"] - before["seconds"]
        if tokens > 0 and seconds > 0:
            points.append((after["step"], tokens / seconds))
    return points


def _panel(title: str, series: list[Series], size: dict[str, int], *, from_zero: bool = False) -> Panel | None:
    chart = line_chart(title, series, **size, from_zero=from_zero)
    stride = charts.every(max((len(line.points) for line in series), default=0))
    note = f"1 point in {stride} drawn" if stride > 1 else ""
    return Panel(title, note, chart) if chart else None


def _points(entries: Entries, name: str) -> list[Point]:
    return [(entry["step"], entry[name]) for entry in entries if name in entry]


def _last(entries: Entries, name: str) -> float | None:
    return next((entry[name] for entry in reversed(entries) if name in entry), None)


def _last_mean(entries: Entries, name: str) -> float | None:
    values = [y for _, y in _points(entries, name)[-LAST_POINTS:]]
    return sum(values) / len(values) if values else None


def _seconds(entries: Entries) -> float | None:
    """The clock starts anew when a run is resumed: add up what each start reached."""
    clock = [entry["seconds"] for entry in entries if "seconds" in entry]
    ends = [now for now, after in pairwise(clock) if after < now]
    return sum(ends) + clock[-1] if clock else None


def key_figure(known: Facts) -> tuple[str, str] | None:
    """The one figure that says how training ended, and its name: of validation where there was any."""
    names = {
        "valid_reward": "validation reward",
        "reward": f"reward, last {LAST_POINTS}",
        "valid_loss": "validation loss",
        "loss": f"loss, last {LAST_POINTS}",
    }
    for field_name, name in names.items():
        value = getattr(known, field_name)
        if value is not None:
            return wording.value(field_name, value), name
    return None
