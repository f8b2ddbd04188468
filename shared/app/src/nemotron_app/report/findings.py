"""What the evaluation found: scores per task, differences between stages, and both as sentences."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemotron_app.report import wording
from nemotron_app.report.charts import Strip, StripAxis, strip_axis
from nemotron_app.report.collect import in_order, sample_task
from nemotron_shared.stages import TRAINING

Results = Mapping[str, Any]
MODEL_OF_STAGE = {stage.name: stage.model for stage in TRAINING if stage.model}
# A base model has not learned to answer, so what it is judged by is the text that it predicts.
KINDS_FOR = {"pretrain": ("text", "choice", "generate")}
KINDS = ("generate", "choice", "text")
BETTER, WORSE, UNCLEAR = "better", "worse", "no clear change"


@dataclass(frozen=True)
class Score:
    """One model on one task."""

    model: str
    label: str
    value: str
    interval: str
    n: int
    strip: Strip | None


@dataclass(frozen=True)
class TaskScores:
    """All models on one task, on a common axis."""

    name: str
    metric: str
    lower_is_better: bool
    n: int
    n_unique: int
    axis: StripAxis
    scores: list[Score]


@dataclass(frozen=True)
class Change:
    """What one stage changed on one task, on the same questions before and after."""

    before: str
    after: str
    model: str
    difference: str
    interval: str
    n: int
    verdict: str
    strip: Strip | None


@dataclass(frozen=True)
class TaskChanges:
    """All changes on one task, on a common axis."""

    name: str
    metric: str
    axis: StripAxis
    changes: list[Change]


def task_scores(results: Results) -> list[TaskScores]:
    """Scores by task, in the order of the evaluation."""
    return [_task_scores(results, task) for task in in_order(results, "task")]


def task_changes(results: Results) -> list[TaskChanges]:
    """Paired differences by task, in the order of the evaluation."""
    found = []
    for task in in_order(results, "task"):
        entries = [entry for entry in results["comparisons"] if entry["task"] == task]
        if entries:
            bounds = [bound for entry in entries for bound in (entry["difference"], *entry["ci95"])]
            axis = strip_axis(bounds, share=_is_share(results, task), signed=True)
            metric = results["tasks"][task]["metric"]
            found.append(TaskChanges(task, metric, axis, [_change(results, entry, axis) for entry in entries]))
    return found


def verdict(results: Results, comparison: Mapping[str, Any]) -> str:
    """Better or worse where the 95% interval leaves out zero."""
    low, high = comparison["ci95"]
    if not math.isfinite(low + high) or low <= 0 <= high:
        return UNCLEAR
    return BETTER if (low > 0) != results["tasks"][comparison["task"]].get("lower_is_better", False) else WORSE


def score_of(results: Results, model: str, task: str | None) -> Mapping[str, Any] | None:
    """The entry of one model on one task."""
    entries = (entry for entry in results["scores"] if (entry["model"], entry["task"]) == (model, task))
    return next(entries, None)


def stage_score(results: Results, stage: str) -> Mapping[str, Any] | None:
    """The score that stands for a stage: by a fixed rule on the kind of task, not by which came out best."""
    for kind in KINDS_FOR.get(stage, KINDS):
        for task in in_order(results, "task"):
            found = score_of(results, MODEL_OF_STAGE[stage], task)
            if found and results["tasks"][task]["kind"] == kind:
                return found
    return None


def headline(results: Results) -> str | None:
    """`Exact match on the 400 questions of sums: 2.0% (base), 41.2% (after SFT), 93.0% (after RL).`"""
    task = sample_task(results) or next(iter(in_order(results, "task")), None)
    scores = [entry for entry in results["scores"] if entry["task"] == task]
    if not scores:
        return None
    metric, about = scores[0]["metric"], results["tasks"][task]
    parts = [f"{wording.value(metric, entry['value'])} ({label(results, entry['model'])})" for entry in scores]
    name = wording.metric_name(metric)
    items = "texts" if about["kind"] == "text" else "questions"
    return f"{name[0].upper()}{name[1:]} on the {about['n']} {items} of {task}: {', '.join(parts)}."


def stage_sentence(results: Results, stage: str) -> str | None:
    """What a stage added, with what it cost on other tasks."""
    score = stage_score(results, stage)
    if score is None:
        return None
    steps = [entry for entry in results["comparisons"] if entry["to"] == score["model"]]
    own = [_changed(results, entry) for entry in steps if entry["task"] == score["task"]]
    setbacks = [
        f"{entry['task']} got worse by {wording.amount(entry['metric'], entry['difference'])}"
        for entry in steps
        if entry["task"] != score["task"] and verdict(results, entry) == WORSE
    ]
    texts = own or ["There is no model before it to compare with."]
    return " ".join(texts + [f"But {text}." for text in setbacks])


def label(results: Results, model: str) -> str:
    """A model's name for people."""
    return str(results["models"][model]["label"])


def _changed(results: Results, comparison: Mapping[str, Any]) -> str:
    metric, before, difference = comparison["metric"], label(results, comparison["from"]), comparison["difference"]
    found = verdict(results, comparison)
    if difference == 0 and not any(comparison["ci95"]):
        return f"No change from {before}."
    if found == UNCLEAR:
        bounds = wording.change_interval(metric, comparison["ci95"])
        return f"No clear change from {before}: {wording.change(metric, difference)} (95% interval {bounds})."
    low, high = (wording.amount_number(metric, bound) for bound in sorted(comparison["ci95"], key=abs))
    return f"{wording.amount(metric, difference)} {found} than {before} (95% interval {low} to {high})."


def _task_scores(results: Results, task: str) -> TaskScores:
    about = results["tasks"][task]
    entries = [entry for entry in results["scores"] if entry["task"] == task]
    highest = [max(entry["value"], entry["ci95"][1]) for entry in entries]
    axis = strip_axis(highest, share=_is_share(results, task))
    scores = [
        Score(
            model=entry["model"],
            label=label(results, entry["model"]),
            value=wording.value(entry["metric"], entry["value"]),
            interval=wording.interval(entry["metric"], entry["ci95"]),
            n=entry["n"],
            strip=axis.strip(entry["value"], entry["ci95"]),
        )
        for entry in entries
    ]
    lower = about.get("lower_is_better", False)
    return TaskScores(task, about["metric"], lower, about["n"], about.get("n_unique", about["n"]), axis, scores)


def _change(results: Results, entry: Mapping[str, Any], axis: StripAxis) -> Change:
    return Change(
        before=label(results, entry["from"]),
        after=label(results, entry["to"]),
        model=entry["to"],
        difference=wording.change(entry["metric"], entry["difference"]),
        interval=wording.change_interval(entry["metric"], entry["ci95"]),
        n=entry["n"],
        verdict=verdict(results, entry),
        strip=axis.strip(entry["difference"], entry["ci95"]),
    )


def _is_share(results: Results, task: str) -> bool:
    return results["tasks"][task]["metric"] in wording.SHARES
