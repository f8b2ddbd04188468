"""One page for several trainings: what differs in their settings, their numbers, and their curves in one drawing each.

It is written once to compare (`--compare`), and again every few seconds while they work (`--live`).
"""

from collections.abc import Sequence
from dataclasses import replace

from nemotron_app import html
from nemotron_app.report import wording
from nemotron_app.report.charts import Series
from nemotron_app.report.trained import Trained
from nemotron_app.report.training import LOGARITHMIC, Panel, facts, large_panel, points, smoothed
from nemotron_app.rich_table import Table
from nemotron_shared.runtime.metrics import METRICS, Metric

DRAWN: dict[Metric, str] = {
    "loss": "Loss", "reward": "Reward", "valid_loss": "Validation loss", "valid_reward": "Validation reward",
    "grad_norm": "Gradient norm", "lr": "Learning rate", "entropy": "Entropy",
    "completion_length": "Tokens per answer", "tokens_per_second": "Tokens per second", "memory_gb": "Memory held, GB",
}  # fmt: skip
EXACT = {"lr", "valid_loss", "valid_reward", "memory_gb"}
"""Drawn as they are; the others as a moving mean, so that several curves can be told apart."""


def render(trainings: Sequence[Trained], title: str, *, renew: int | None = None) -> str:
    """The page. `renew`: seconds after which a browser reads it again."""
    values = {
        "title": title,
        "renew": renew,
        "numbers": numbers(trainings),
        "settings": differing_settings(trainings),
        "unknown": [one.name for one in trainings if not one.settings],
        "panels": panels(trainings),
        "names": [one.name for one in trainings],
    }
    return html.render("overlay.html.jinja", values)


def numbers(trainings: Sequence[Trained]) -> Table:
    """One row for each training: how far it is, how fast, and how well it ended."""
    columns = {"training": [one.name for one in trainings], "state": [one.state for one in trainings]}
    known = [facts(one.entries) for one in trainings]
    known = [each if each.reward is None else replace(each, loss=None, valid_loss=None) for each in known]
    columns["steps"] = [f"{one.step} of {one.steps}" if one.steps else f"{one.step}" for one in trainings]
    columns["time"] = [wording.duration(each.seconds) for each in known]
    for heading, attribute in (
        ("tokens/s", "tokens_per_second"), ("loss", "loss"), ("valid loss", "valid_loss"), ("reward", "reward"),
        ("valid reward", "valid_reward"), ("GB held", "memory"),
    ):  # fmt: skip
        if any(getattr(each, attribute) is not None for each in known):
            values = (getattr(each, attribute) for each in known)
            columns[heading] = ["–" if value is None else wording.number(value) for value in values]
    for task, metric in dict.fromkeys(key for one in trainings for key in one.scores):
        scores = (one.scores.get((task, metric)) for one in trainings)
        columns[task] = ["–" if score is None else wording.value(metric, score) for score in scores]
    return Table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def differing_settings(trainings: Sequence[Trained]) -> Table | None:
    """Every setting that has not one value in all trainings whose config is known; None where there is none."""
    known = [one for one in trainings if one.settings]
    keys = dict.fromkeys(key for one in known for key in one.settings)
    rows = []
    for key in keys:
        values = ["(none)" if key not in one.settings else wording.setting(one.settings[key]) for one in known]
        rows += [[key, *values]] if len(set(values)) > 1 else []
    return Table(["setting", *(one.name for one in known)], rows) if rows else None


def panels(trainings: Sequence[Trained]) -> list[tuple[Panel, str]]:
    """One drawing for each metric that any of them logged, and what the metric means."""
    rewarded = any(points(one.entries, "reward") for one in trainings)
    found = []
    for name, title in DRAWN.items():
        if rewarded and name.endswith("loss"):
            continue  # a loss of reinforcement learning says nothing
        series = []
        for tint, one in enumerate(trainings):
            line = points(one.entries, name)
            drawn = line if name in EXACT else smoothed(line)[-1].points
            series += [Series(one.name, drawn, tint=tint)] if drawn else []
        may_be_log = name in {*LOGARITHMIC, "valid_loss"}
        if series and (panel := large_panel(title, series, from_zero=not may_be_log, may_be_log=may_be_log)):
            found.append((panel, METRICS[name]))
    return found
