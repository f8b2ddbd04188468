"""One page for several trainings: what differs in their settings, their numbers, and their curves in one drawing each.

It is written once to compare (`--compare`), and again every few seconds while they work (`--live`).
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
"""Drawn as they are; the others as a moving mean, so that several curves can be told apart."""
SPEED = "Between one logged step and the next."
Cell = float | str | None


@dataclass(frozen=True)
class Figure:
    """One line of the comparison: what is compared, each training's value, and how it is written."""

    key: str
    label: str
    values: list[Cell]
    write: Callable[[Any], str] = str


def render(trainings: Sequence[Trained], title: str, overline: str, *, renew: int | None = None) -> str:
    """The page. `renew`: seconds after which a browser reads it again."""
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
    """What is damaged or not known of any of them, each once."""
    return list(dict.fromkeys(note for one in trainings for note in one.notes))


def figures(trainings: Sequence[Trained]) -> list[Figure]:
    """How far each training is, how fast, and how well it ended; without what none of them has."""
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
        *_scores(trainings),
    ]
    return [one for one in found if any(value is not None for value in one.values)]


def _scores(trainings: Sequence[Trained]) -> list[Figure]:
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
    """The figures as people read them: a line for each, a column for each training."""
    rows = [
        [one.label, *("–" if value is None else one.write(value) for value in one.values)] for one in figures(trainings)
    ]
    return Table(["figure", *(one.name for one in trainings)], rows)


def plain(trainings: Sequence[Trained]) -> list[dict[str, Cell]]:
    """The figures as programs read them; what is not known, or is no finite number, is null."""
    found: list[dict[str, Cell]] = [{"training": one.name} for one in trainings]
    for figure in figures(trainings):
        for row, value in zip(found, figure.values, strict=True):
            row[figure.key] = None if isinstance(value, float) and not math.isfinite(value) else value
    return found


def differing(trainings: Sequence[Trained]) -> dict[str, dict[str, Any]]:
    """Every setting that has not one value in all trainings whose config is known: its value in each that has it."""
    known = [one for one in trainings if one.settings]
    found = {}
    for key in dict.fromkeys(key for one in known for key in one.settings):
        values = {one.name: one.settings[key] for one in known if key in one.settings}
        if len(values) < len(known) or len({wording.setting(value) for value in values.values()}) > 1:
            found[key] = values
    return found


def differing_settings(trainings: Sequence[Trained]) -> Table | None:
    """The settings that differ as a table; None where there are none."""
    known = [one.name for one in trainings if one.settings]
    rows = [
        [key, *(wording.setting(values[name]) if name in values else "(none)" for name in known)]
        for key, values in differing(trainings).items()
    ]
    return Table(["setting", *known], rows) if rows else None


def panels(trainings: Sequence[Trained]) -> list[tuple[Panel, str]]:
    """One drawing for each metric that any of them logged, and what the metric means."""
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
        return []  # a loss of reinforcement learning says nothing
    return points(one.entries, name)
