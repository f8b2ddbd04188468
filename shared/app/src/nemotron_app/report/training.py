"""Training logs as figures and charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from nemotron_app import charts, wording
from nemotron_app.charts import LineChart, Point, Series, line_chart, moving_mean
from nemotron_app.training_log import Drawn, drawn
from nemotron_shared.tracking.metrics import EXPERT_METRIC

Entries = Sequence[dict[str, Any]]
LARGE, LARGE_ON_PHONE = {"width": 1030, "height": 280}, {"width": 380, "height": 250}
SMALL = {"width": 310, "height": 140}
SMALL_OF_MANY = {"width": 230, "height": 140}
FEW = 6
"""Up to this many small charts are shown three in a row; more get smaller."""
LAST_POINTS = 10
LARGEST = 1e300
REWARD_PREFIX, REWARD_SUFFIX = "rewards/", "/mean"
# Metrics and titles of the small charts. Schedules are not smoothed, which would round off their corners.
SCHEDULES = {"lr": "Learning rate"}
LOSS_PANELS = SCHEDULES | {
    "grad_norm": "Gradient norm", "pair_accuracy": "Pairs told apart", "reward_margin": "Margin of pairs",
}  # fmt: skip
LOGARITHMIC = {"loss", "grad_norm"}
"""Metrics that get a logarithmic axis if their values are far apart."""
REWARD_PANELS = {
    "zero_advantage_fraction": "Groups with equal rewards",
    "completion_length": "Tokens per answer",
    "truncated_fraction": "Answers cut off",
    "entropy": "Entropy",
}
EPISODE_PANELS = {
    "environment/turns": "Turns per episode",
    "environment/calls": "Tool calls per episode",
    "environment/refused_calls": "Refused calls per episode",
    "environment/tokens": "Environment's tokens per episode",
    "environment/failed": "Episodes that failed",
}
LIMITS = ("environment/cut_turns", "environment/out_of_tokens", "environment/out_of_turns")
EPISODE_SECONDS = {
    "environment/sampling_seconds": "sampling",
    "environment/seconds": "environments",
    "environment/training_seconds": "training",
}
MACHINE_PANELS = {"memory_gb": "Memory held, GB"}
LOAD, _ = EXPERT_METRIC.split("{")


@dataclass(frozen=True)
class Facts:
    """Figures of a training run; None if not logged.

    Attributes:
        seconds: time in the training loop; for resumed runs, only what the log covers.
        tokens_per_second: mean over that time.
        loss, reward: mean of the last `LAST_POINTS` logged values, because single steps are noisy.
        valid_loss, valid_reward, valid_pair_accuracy: the last validation.
        memory: peak GB of the first process.
        not_finite: number of logged losses or rewards that were NaN or infinite.
    """

    steps: int | None = None
    tokens: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    reward: float | None = None
    valid_loss: float | None = None
    valid_reward: float | None = None
    valid_pair_accuracy: float | None = None
    memory: float | None = None
    not_finite: int = 0


@dataclass(frozen=True)
class Panel:
    """A chart with its caption. `on_phone` is a variant for narrow screens, if needed."""

    title: str
    note: str
    chart: LineChart
    on_phone: LineChart | None = None


def facts(entries: Entries) -> Facts:
    """Compute the figures of a run."""
    if not entries:
        return Facts()
    # The clock restarts when a run is resumed: add up the maximum of each attempt.
    clock = [seconds for _, seconds in points(entries, "seconds")]
    seconds = sum(now for now, after in pairwise(clock) if after < now) + clock[-1] if clock else None
    tokens, valid_loss, valid_reward, valid_pairs = (
        next((y for _, y in reversed(points(entries, name))), None)
        for name in ("tokens", "valid_loss", "valid_reward", "valid_pair_accuracy")
    )
    losses, rewards = ([y for _, y in points(entries, name)] for name in ("loss", "reward"))
    loss, reward = (sum(last) / len(last) if (last := values[-LAST_POINTS:]) else None for values in (losses, rewards))
    return Facts(
        steps=max(entry["step"] for entry in entries),
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds if tokens and seconds else None,
        loss=loss,
        reward=reward,
        valid_loss=valid_loss,
        valid_reward=valid_reward,
        valid_pair_accuracy=valid_pairs,
        memory=max((y for _, y in points(entries, "memory_gb")), default=None),
        not_finite=sum(not math.isfinite(value) for value in (*losses, *rewards)),
    )


def key_metric(known: Facts) -> tuple[str, str] | None:
    """Name and value of the metric that summarizes a training: from validation if there was any."""
    names = {
        "valid_reward": "validation reward",
        "reward": f"reward, last {LAST_POINTS}",
        "valid_pair_accuracy": "validation pairs told apart",
        "valid_loss": "validation loss",
        "loss": f"loss, last {LAST_POINTS}",
    }
    found = ((getattr(known, field), name) for field, name in names.items())
    return next(((wording.value(name, value), name) for value, name in found if value is not None), None)


def panels(entries: Entries) -> tuple[Panel | None, list[Panel]]:
    """A large chart of the loss or, if logged, the reward, and small charts that explain it."""
    main, titles = "loss", LOSS_PANELS
    if points(entries, "reward"):
        names = sorted({name for entry in entries for name in entry if name.startswith(REWARD_PREFIX)})
        rewards = {name: f"Reward: {name.removeprefix(REWARD_PREFIX).removesuffix(REWARD_SUFFIX)}" for name in names}
        # a single reward function would duplicate the large chart
        main, titles = "reward", (rewards if len(rewards) > 1 else {}) | REWARD_PANELS | EPISODE_PANELS
    check = Series("validation", points(entries, f"valid_{main}"), "check")
    smooth = [*smoothed(points(entries, main)), check]
    large = large_panel(main.capitalize(), smooth, from_zero=main == "reward", may_be_log=main in LOGARITHMIC)
    lines = {
        title: [Series("as logged", points(entries, name))] if name in SCHEDULES else smoothed(points(entries, name))
        for name, title in titles.items()
    }
    lines |= _episodes(entries)
    lines["Tokens per second"] = smoothed(speed(entries))
    lines |= {title: [Series("as logged", points(entries, name))] for name, title in MACHINE_PANELS.items()}
    lines["Busiest expert by layer, × even share"] = _loads(entries)
    lines = {title: series for title, series in lines.items() if series and series[0].points}
    size = SMALL if len(lines) <= FEW else SMALL_OF_MANY
    may_be_log = {titles[name] for name in LOGARITHMIC & titles.keys()}
    small = [
        _panel(title, series, size, from_zero=True, may_be_log=title in may_be_log) for title, series in lines.items()
    ]
    return large, [panel for panel in small if panel]


def large_panel(title: str, series: list[Series], *, from_zero: bool, may_be_log: bool) -> Panel | None:
    """A full-width chart, and its variant for phones."""
    wide, narrow = (
        _panel(title, series, size, from_zero=from_zero, may_be_log=may_be_log) for size in (LARGE, LARGE_ON_PHONE)
    )
    return replace(wide, on_phone=narrow.chart) if wide and narrow else None


def _episodes(entries: Entries) -> dict[str, list[Series]]:
    """Of episodes with environments: how many a limit ended, and where a step's time went."""
    steps = [entry for entry in entries if LIMITS[0] in entry]
    if not steps:
        return {}
    ended = [(entry["step"], sum(entry[name] for name in LIMITS)) for entry in steps]
    times = [
        Series(title, smoothed(points(entries, name))[-1].points, tint=number)
        for number, (name, title) in enumerate(EPISODE_SECONDS.items())
    ]
    return {"Episodes ended by a limit": smoothed(ended), "Seconds of a step": times}


def _loads(entries: Entries) -> list[Series]:
    """One line per expert layer, smoothed because single steps are noisy."""
    names = {name for entry in entries for name in entry if name.startswith(LOAD)}
    numbered = {name: name.removeprefix(LOAD) for name in names}
    names = sorted(names, key=lambda name: (int(numbered[name]) if numbered[name].isdigit() else -1, name))
    return [
        Series(f"layer {numbered[name]}", smoothed(points(entries, name))[-1].points, tint=number)
        for number, name in enumerate(names)
    ]


def smoothed(points: list[Point]) -> list[Series]:
    """The points, faint, below their moving mean; only the points if there are too few."""
    if isinstance(points, Drawn):
        window, mean = points.mean
        return [Series("as logged", points, "raw"), Series(f"mean of {window} points", mean, "mean")]
    window = window_of(points)
    if window == 1:
        return [Series("as logged", points)]
    return [Series("as logged", points, "raw"), Series(f"mean of {window} points", moving_mean(points, window), "mean")]


def window_of(points: Sequence[Point]) -> int:
    """Window of the moving mean: an odd number, about a twentieth of the run; 1 if there are too few points."""
    window = max(5, len(points) // 20 | 1)
    return window if len(points) >= 2 * window else 1


def speed(entries: Entries) -> list[Point]:
    """Tokens per second between consecutive log lines, excluding validation and restarts."""
    speeds = []
    timed = [entry for entry in entries if "tokens" in entry and "seconds" in entry]
    for before, after in pairwise(timed):
        tokens, seconds = after["tokens"] - before["tokens"], after["seconds"] - before["seconds"]
        if tokens > 0 and seconds > 0:
            speeds.append((after["step"], tokens / seconds))
    return speeds


def _panel(
    title: str, series: list[Series], size: dict[str, int], *, from_zero: bool, may_be_log: bool = False
) -> Panel | None:
    series = [line for line in series if line.points]
    chart = line_chart(title, series, **size, from_zero=from_zero, may_be_logarithmic=may_be_log)
    if chart is None:
        return None
    thinned = max(len(line.points) for line in series) > charts.MAX_POINTS
    notes = ["logarithmic"] * chart.logarithmic + ["thinned, keeping minima and maxima"] * thinned
    return Panel(title, ", ".join(notes), chart)


def points(entries: Entries, name: str) -> list[Point]:
    """Step and value of every entry that has a metric; values too large for an axis count as infinite."""
    found = drawn(entries, name)
    if not any(abs(value) > LARGEST for _, value in found):
        return found
    return [(step, value if not abs(value) > LARGEST else math.copysign(math.inf, value)) for step, value in found]
