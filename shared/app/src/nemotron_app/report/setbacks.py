"""Scores that got worse, with recorded facts that may explain it.

No record proves a cause. Each sentence states a measured fact that often is one, and each remedy is a suggestion.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemotron_app.report import wording
from nemotron_app.report.collect import Collected
from nemotron_app.report.findings import WORSE, label, score_of, verdict
from nemotron_shared.stages import TRAINING, Stage

Fact = tuple[str, str]
"""A measured fact, and what to try because of it."""
RISEN = 1.02
"""The validation loss counts as risen if it ends above this multiple of its minimum."""
CUT = 0.05
STAGE_OF_MODEL = {stage.model: stage for stage in TRAINING if stage.model}


@dataclass(frozen=True)
class Setback:
    """A score that got worse from one model to the next."""

    task: str
    model: str
    sentence: str
    facts: list[Fact]


def setbacks(collected: Collected) -> list[Setback]:
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
        facts = [*_of_form(before, after), *_of_data(collected, stage, name), *_of_log(collected.metrics[stage.name])]
        found.append(Setback(name, entry["to"], f"{words}.", facts))
    return found


def _of_form(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[Fact]:
    if before and after and after.get("lenient", -1.0) >= before.get("lenient", math.inf):
        lenient = [f"{score['lenient']:.1%}" for score in (before, after)]
        yield (
            f"The lenient verdict, which overlooks the form of an answer, did not fall: {' → '.join(lenient)}.",
            "Look at the answers below: the form that the strict verdict wants got lost, not what they say.",
        )


def _of_data(collected: Collected, stage: Stage, task: str) -> Iterator[Fact]:
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


def _of_log(entries: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
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
