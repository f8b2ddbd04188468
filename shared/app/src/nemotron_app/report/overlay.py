"""One page for several trainings: differing settings, figures, and curves of all of them in each chart.

Written once for `--compare`, and every few seconds while they run for `--live`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemotron_app import html
from nemotron_app.report import wording
from nemotron_app.report.charts import Point, Series, moving_mean
from nemotron_app.report.trained import Trained
from nemotron_app.report.training import (
    LAST_POINTS,
    LOGARITHMIC,
    Panel,
    facts,
    large_panel,
    points,
    speed,
    window_of,
)
from nemotron_app.rich_table import Table
from nemotron_shared.runtime.metrics import METRICS, Metric

DRAWN: dict[Metric, str] = {
    "loss": "Loss", "reward": "Reward", "valid_loss": "Validation loss", "valid_reward": "Validation reward",
    "grad_norm": "Gradient norm", "lr": "Learning rate", "entropy": "Entropy",
    "completion_length": "Tokens per answer", "tokens_per_second": "Tokens per second", "memory_gb": "Memory held, GB",
}  # fmt: skip
EXACT = {"lr", "valid_loss", "valid_reward", "memory_gb"}
"""Metrics drawn unsmoothed; others as a moving mean, so that several curves remain distinguishable."""
SPEED = "Between one logged step and the next."
Cell = float | str | None


@dataclass(frozen=True)
class Figure:
    """One row of the comparison: its name, each training's value, and its format."""

    key: str
    label: str
    values: list[Cell]
    write: Callable[[Any], str] = str


def render(trainings: Sequence[Trained], title: str, overline: str, *, renew: int | None = None) -> str:
    """Render the page. `renew`: seconds after which a browser reloads it."""
    values = {
        "title": title,
        "overline": overline,
        "renew": renew,
        "numbers": numbers(trainings),
        "settings": differing_settings(trainings),
        "notes": notes(trainings),
        "panels": panels(trainings),
        "names": [one.name for one in trainings],
    }
    return html.render("overlay.html.jinja", values)


def notes(trainings: Sequence[Trained]) -> list[str]:
    """Damage and unknowns of all trainings, without repetition."""
    return list(dict.fromkeys(note for one in trainings for note in one.notes))


def figures(trainings: Sequence[Trained]) -> list[Figure]:
    """Progress, speed and final results of each training, without rows that are empty for all."""
    known = [facts(one.entries) for one in trainings]
    known = [each if each.reward is None else replace(each, loss=None, valid_loss=None) for each in known]

    def of(key: str, label: str, write: Callable[[Any], str] = wording.number) -> Figure:
        return Figure(key, label, [getattr(each, key) for each in known], write)

    found = [
        Figure("state", "state", [one.state for one in trainings]),
        Figure("step", "last step", [one.step for one in trainings]),
        Figure("steps", "steps in all", [one.steps for one in trainings]),
        of("seconds", "training loop", wording.duration),
        of("tokens_per_second", "tokens/s"),
        of("loss", f"loss, mean of last {LAST_POINTS}"),
        of("valid_loss", "validation loss"),
        of("reward", f"reward, mean of last {LAST_POINTS}"),
        of("valid_reward", "validation reward"),
        replace(of("memory", "memory held, GB"), key="memory_gb"),
        *_score_figures(trainings),
    ]
    return [one for one in found if any(value is not None for value in one.values)]


def _score_figures(trainings: Sequence[Trained]) -> list[Figure]:
    keys = dict.fromkeys(key for one in trainings for key in one.scores)
    return [
        Figure(
            f"{task}/{metric}",
            f"{task}, {wording.metric_name(metric)}",
            [one.scores.get((task, metric)) for one in trainings],
            lambda value, metric=metric: wording.value(metric, value),
        )
        for task, metric in keys
    ]


def numbers(trainings: Sequence[Trained]) -> Table:
    """The figures as a text table: a row per figure, a column per training."""
    rows = [
        [one.label, *("–" if value is None else one.write(value) for value in one.values)] for one in figures(trainings)
    ]
    return Table(["figure", *(one.name for one in trainings)], rows)


def plain(trainings: Sequence[Trained]) -> list[dict[str, Cell]]:
    """The figures as JSON; unknown or non-finite values are null."""
    found: list[dict[str, Cell]] = [{"training": one.name} for one in trainings]
    for figure in figures(trainings):
        for row, value in zip(found, figure.values, strict=True):
            row[figure.key] = None if isinstance(value, float) and not math.isfinite(value) else value
    return found


def differing(trainings: Sequence[Trained]) -> dict[str, dict[str, Any]]:
    """Settings that are not equal in all trainings with a known config, and their values."""
    known = [one for one in trainings if one.settings]
    found = {}
    for key in dict.fromkeys(key for one in known for key in one.settings):
        values = {one.name: one.settings[key] for one in known if key in one.settings}
        if len(values) < len(known) or len({wording.setting(value) for value in values.values()}) > 1:
            found[key] = values
    return found


def differing_settings(trainings: Sequence[Trained]) -> Table | None:
    """The differing settings as a table, or None."""
    known = [one.name for one in trainings if one.settings]
    rows = [
        [key, *(wording.setting(values[name]) if name in values else "(none)" for name in known)]
        for key, values in differing(trainings).items()
    ]
    return Table(["setting", *known], rows) if rows else None


def panels(trainings: Sequence[Trained]) -> list[tuple[Panel, str]]:
    """One chart for each metric that any of them logged, and the meaning of the metric."""
    found = []
    for name, title in DRAWN.items():
        lines = [_line(one, name) for one in trainings]
        windows = [1 if name in EXACT else window_of(line) for line in lines]
        series = [
            Series(one.name, moving_mean(line, window), tint=tint)
            for tint, (one, line, window) in enumerate(zip(trainings, lines, windows, strict=True))
            if line
        ]
        may_be_log = name in {*LOGARITHMIC, "valid_loss"}
        if series and (panel := large_panel(title, series, from_zero=not may_be_log, may_be_log=may_be_log)):
            means = ", ".join(str(window) for window in sorted(set(windows)) if window > 1)
            note = ", ".join(filter(None, (panel.note, f"moving mean of {means} points" if means else "")))
            found.append((replace(panel, note=note), SPEED if name == "tokens_per_second" else METRICS[name]))
    return found


def _line(one: Trained, name: Metric) -> list[Point]:
    if name == "tokens_per_second":
        return speed(one.entries)
    if name.endswith("loss") and points(one.entries, "reward"):
        return []  # the loss is not meaningful in RL
    return points(one.entries, name)
