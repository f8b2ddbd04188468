"""Results of the evaluation: scores per task, differences between stages, and sentences about both."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemotron_app import wording
from nemotron_app.charts import StripAxis, strip_axis
from nemotron_app.report.collect import Collected
from nemotron_app.report.results import in_order, shown_task
from nemotron_shared.stages import TRAINING, Stage

Results = Mapping[str, Any]
MODEL_OF_STAGE = {stage.name: stage.model for stage in TRAINING if stage.model}
# Base models cannot follow instructions yet, so prefer scores of predicted text.
KINDS_FOR = {"pretrain": ("text", "choice", "generate", "scored", "call", "episode", "code", "instructions", "answer")}
KINDS = ("generate", "scored", "call", "episode", "choice", "code", "instructions", "answer", "text")
BETTER, WORSE, UNCLEAR = "better", "worse", "no clear change"


@dataclass(frozen=True)
class TaskEntries:
    """Scores or comparisons of one task, in the form of results.json, and their shared axis."""

    name: str
    about: Mapping[str, Any]
    axis: StripAxis
    entries: list[Mapping[str, Any]]


def by_task(results: Results, kind: str) -> list[TaskEntries]:
    """`scores`, or `comparisons` on the same questions before and after, by task in evaluation order."""
    found = []
    for task in in_order(results, "task"):
        entries = [entry for entry in results[kind] if entry["task"] == task]
        if entries:
            about, signed = results["tasks"][task], kind == "comparisons"
            bounds = [
                number for entry in entries for number in (entry["difference" if signed else "value"], *entry["ci95"])
            ]
            axis = strip_axis(bounds, share=about["metric"] in wording.SHARES, signed=signed)
            found.append(TaskEntries(task, about, axis, entries))
    return found


def verdict(results: Results, comparison: Mapping[str, Any]) -> str:
    """Better or worse if the 95% interval excludes zero."""
    low, high = comparison["ci95"]
    if not math.isfinite(low + high) or low <= 0 <= high:
        return UNCLEAR
    return BETTER if (low > 0) != results["tasks"][comparison["task"]].get("lower_is_better", False) else WORSE


def score_of(results: Results, model: str, task: str | None) -> Mapping[str, Any] | None:
    """The entry of one model on one task."""
    entries = (entry for entry in results["scores"] if (entry["model"], entry["task"]) == (model, task))
    return next(entries, None)


def stage_score(results: Results, stage: str) -> Mapping[str, Any] | None:
    """The score that represents a stage, chosen by a fixed rule on the kind of task and not by the best result."""
    for kind in KINDS_FOR.get(stage, KINDS):
        for task in in_order(results, "task"):
            found = score_of(results, MODEL_OF_STAGE[stage], task)
            if found and results["tasks"][task]["kind"] == kind:
                return found
    return None


def headline(results: Results) -> str | None:
    """`Exact match on the 400 questions of sums: 2.0% (base), 41.2% (after SFT), 93.0% (after RL).`"""
    task = shown_task(results)
    scores = [entry for entry in results["scores"] if entry["task"] == task]
    if not scores:
        return None
    metric, about = scores[0]["metric"], results["tasks"][task]
    values = [f"{wording.value(metric, entry['value'])} ({label(results, entry['model'])})" for entry in scores]
    name = wording.metric_name(metric)
    items = "texts" if about["kind"] == "text" else "questions"
    return f"{name[0].upper()}{name[1:]} on the {about['n']} {items} of {task}: {', '.join(values)}."


def stage_sentence(results: Results, stage: str) -> str | None:
    """What a stage gained, and what it lost on other tasks."""
    score = stage_score(results, stage)
    if score is None:
        return None
    gains, regressions = [], []
    for entry in results["comparisons"]:
        if entry["to"] != score["model"]:
            continue
        metric, difference, found = entry["metric"], entry["difference"], verdict(results, entry)
        before, amount = label(results, entry["from"]), wording.amount(metric, difference)
        if entry["task"] != score["task"]:
            if found == WORSE:
                regressions.append(f"{entry['task']} by {amount}")
        elif difference == 0 and not any(entry["ci95"]):
            gains.append(f"No change from {before}.")
        elif found == UNCLEAR:
            bounds = wording.change_interval(metric, entry["ci95"])
            change = wording.change(metric, difference)
            gains.append(f"No clear change from {before}: {change} (95% interval {bounds}).")
        else:
            low, high = (wording.difference(metric, abs(bound)).lstrip("+") for bound in sorted(entry["ci95"], key=abs))
            gains.append(f"{amount} {found} than {before} (95% interval {low} to {high}).")
    worse = [f"But worse: {', '.join(regressions)}."] if regressions else []
    return " ".join([*(gains or ["It has no earlier model to compare with."]), *worse])


def overlap_sentence(results: Results, task: str) -> str:
    """`0 of the 400 questions of sums occur in the training data: 0 exact, 0 near.`, and facts about the check."""
    check = results["overlap"][task]
    unknown = ", ".join(check["unknown"])
    if unknown and not check["checked_against"]:
        return f"{task} was not checked: what {unknown} was trained on is not known."
    kind = results["tasks"][task]["kind"] if task in results["tasks"] else "generate"
    items = "texts" if kind == "text" else "questions"
    text = f"{check['found']} of the {check['of']} {items} of {task} occur in the training data"
    if "exact" in check:  # older evaluations searched only for exact copies
        text += f": {check['exact']} exact, {check['found'] - check['exact']} near"
    sentences = check.get("sentences")
    parts = [f"{sentences['found']} of their {sentences['of']} sentences do"] if sentences else []
    if "asked" in check:
        parts.append(f"the questions of {check['asked']} do, perhaps asked in another world")
    if "stated" in check:
        parts.append(f"{check['stated']} of the answers are stated there, which is what this task asks for")
    places = ", ".join(check["checked_against"]) or "none"
    more = f" only. What else {unknown} was trained on is not known" if unknown else ""
    return f"{'; '.join([text, *parts])}. Looked for in {places}{more}."


def overlap_in_short(results: Results) -> str:
    """`overlap 0 of 560 exact, 0 near` over all tasks, or why it is unknown; empty if it was not checked."""
    checks = results["overlap"].values()
    found, asked = (sum(check[key] for check in checks) for key in ("found", "of"))
    unknown = sorted({model for check in checks for model in check["unknown"]})
    if unknown and not any(check["checked_against"] for check in checks):
        return f"overlap not checked: what {', '.join(unknown)} was trained on is not known"
    exact = sum(check.get("exact", check["found"]) for check in checks)
    part = ", as far as known" if unknown else ""
    return f"overlap {exact} of {asked} exact, {found - exact} near{part}" if asked else ""


def label(results: Results, model: str) -> str:
    """Display name of a model."""
    return str(results["models"][model]["label"])


# Scores that got worse, with recorded facts that may explain it.
#
# No record proves a cause. Each sentence states a measured fact that often is one, and each remedy is a suggestion.

Fact = tuple[str, str]
"""A measured fact, and what to try because of it."""
RISEN = 1.02
"""The validation loss counts as risen if it ends above this multiple of its minimum."""
CUT = 0.05
STAGE_OF_MODEL = {stage.model: stage for stage in TRAINING if stage.model}


@dataclass(frozen=True)
class Regression:
    """A score that got worse from one model to the next."""

    task: str
    model: str
    sentence: str
    facts: list[Fact]


def regressions(collected: Collected) -> list[Regression]:
    """Every comparison whose entire interval is on the worse side, in evaluation order."""
    results, found = collected.results, []
    for entry in results["comparisons"]:
        stage = STAGE_OF_MODEL.get(entry["to"])
        if stage is None or verdict(results, entry) != WORSE:
            continue
        before, after = (score_of(results, entry[side], entry["task"]) for side in ("from", "to"))
        metric, name = entry["metric"], entry["task"]
        values = [wording.value(metric, score["value"]) for score in (before, after) if score]
        words = f"{name}, {wording.metric_name(metric)}: {' → '.join(values)}, {label(results, entry['to'])}"
        facts = [
            *_facts_of_form(before, after),
            *_facts_of_data(collected, stage, name),
            *_facts_of_log(collected.metrics[stage.name]),
        ]
        found.append(Regression(name, entry["to"], f"{words}.", facts))
    return found


def _facts_of_form(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[Fact]:
    if before and after and after.get("lenient", -1.0) >= before.get("lenient", math.inf):
        lenient = [f"{score['lenient']:.1%}" for score in (before, after)]
        yield (
            f"The lenient verdict, which overlooks the form of an answer, did not fall: {' → '.join(lenient)}.",
            "Look at the answers below: the form that the strict verdict wants got lost, not what they say.",
        )


def _facts_of_data(collected: Collected, stage: Stage, task: str) -> Iterator[Fact]:
    if stage.name == "pretrain" or collected.results["tasks"][task]["kind"] not in {"text", "choice"}:
        return
    data = collected.artifacts.get(stage.data.kind)
    splits = data.manifest.metadata.get("splits", {}) if data else {}
    train = splits.get("train", {})
    unit = next((unit for unit in ("conversations", "rows") if unit in train), None)
    if unit is None:
        return
    amount = f"{wording.short_count(train[unit])} {'prompts' if stage.name == 'rl' else unit}"
    yield (
        f"{stage.title} trained on {amount} and on no pretraining documents; this task measures the text of those.",
        "Train for fewer steps or at a lower rate, or give this stage rows that hold such text.",
    )


def _facts_of_log(entries: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    validated = (entry for entry in entries if math.isfinite(entry.get("valid_loss", math.nan)))
    losses = [(entry["valid_loss"], entry["step"]) for entry in validated]
    if losses and not any("reward" in entry for entry in entries) and losses[-1][0] > RISEN * min(losses)[0]:
        low, step = min(losses)
        yield (
            f"The validation loss was lowest at step {step} ({low:.4g}) and ended at {losses[-1][0]:.4g}.",
            "The model fits its training rows at the cost of others: use more data or fewer steps.",
        )
    cut = [entry["truncated_fraction"] for entry in entries if "truncated_fraction" in entry][-10:]
    if cut and sum(cut) / len(cut) > CUT:
        yield (
            f"{sum(cut) / len(cut):.0%} of the last sampled answers were cut off.",
            "Give answers more room with grpo.max_new_tokens.",
        )
