"""Template values for the HTML page of the report."""

from typing import Any

from nemotron_app import html
from nemotron_app.plain import minute
from nemotron_app.report import findings, tables, training, wording
from nemotron_app.report.collect import STEPS, Collected
from nemotron_app.report.results import in_order, sample_task
from nemotron_app.report.samples import choose_questions
from nemotron_app.report.setbacks import setbacks
from nemotron_app.report.times import total
from nemotron_shared.stages import TRAINING, Stage

COLOURED = (*findings.MODEL_OF_STAGE.values(), "random")


def render(collected: Collected) -> str:
    """Render the page."""
    results = collected.results
    # Show the answers of trained models, if there are any.
    trained = [model for model in in_order(results, "model") if results["models"][model]["reference"]]
    asked = [model for model in trained or results["models"] if model in collected.samples]
    parameters = [found.manifest.metadata.get("parameters") for found in collected.artifacts.values()]
    known = [number for number in parameters if isinstance(number, int)]
    values = {
        "collected": collected,
        "results": results,
        "wording": wording,
        "verdict": findings.verdict,
        "overlap_sentence": lambda task: findings.overlap_sentence(results, task),
        # one color per stage throughout
        "colour": lambda model: model if model in COLOURED else "other",
        "labels": {name: model["label"] for name, model in results["models"].items()},
        "when": minute(collected.when),
        "took": total(collected.artifacts.values()),
        "parameters": wording.short_count(known[-1]) if known else None,
        "headline": findings.headline(results),
        "stages": [_stage(collected, stage) for stage in TRAINING],
        "scores": findings.by_task(results, "scores"),
        "changes": findings.by_task(results, "comparisons"),
        "setbacks": setbacks(collected),
        "settings": tables.settings(results),
        "sample_task": sample_task(results),
        "questions": choose_questions(collected.samples, asked),
        "only_texts": bool(results["tasks"]) and {task["kind"] for task in results["tasks"].values()} == {"text"},
        "asked": max(map(len, collected.samples.values()), default=0),
        "data": {kind: step for kind, step in STEPS.items() if kind.endswith("-data")},
        "data_table": tables.data_table,
        "data_counts": tables.data_counts,
        "rejected_rows": tables.rejected_rows,
        "steps_table": tables.steps_table(collected),
        "code_table": tables.code_table(collected),
        "hardware": tables.machines(collected),
        "versions": tables.versions(collected),
        "commands": dict.fromkeys(found.manifest.producer.command for found in collected.artifacts.values()),
    }
    return html.render("report.html.jinja", values)


def _stage(collected: Collected, stage: Stage) -> dict[str, Any]:
    """One training stage: its main score or metric, what it added, its time, and its charts."""
    kind = stage.result.kind
    facts, score = training.facts(collected.metrics[stage.name]), findings.stage_score(collected.results, stage.name)
    number, about = training.key_metric(facts) or ("–", "")
    if score:
        number = wording.value(score["metric"], score["value"])
        about = f"{wording.metric_name(score['metric'])}, {score['task']}"
    reward = facts.reward is not None  # the loss is not meaningful in RL
    logged = [
        ("steps", facts.steps, wording.number),
        ("tokens", facts.tokens, wording.short_count),
        ("tokens per second", facts.tokens_per_second, wording.number),
        ("training time", facts.seconds, wording.duration),
        ("peak memory", facts.memory, lambda value: f"{value:.2f} GB"),
        (f"loss, last {training.LAST_POINTS}", None if reward else facts.loss, wording.number),
        ("validation loss", None if reward else facts.valid_loss, wording.number),
        (f"reward, last {training.LAST_POINTS}", facts.reward, wording.number),
        ("validation reward", facts.valid_reward, wording.number),
    ]
    shown = {name: write(value) for name, value, write in logged if value is not None}
    foot = [] if facts.steps is None else [wording.counted(facts.steps, "step")]
    foot += [f"{shown['tokens']} tokens"] if "tokens" in shown else []
    large, small = training.panels(collected.metrics[stage.name])
    return {
        "title": stage.title,
        "model": stage.model,
        "reference": collected.artifacts[kind].reference if kind in collected.artifacts else None,
        "absent": collected.absent.get(kind),
        "number": number,
        "about": about,
        "sentence": findings.stage_sentence(collected.results, stage.name) or "Not evaluated.",
        "foot": " · ".join([*foot, *([shown["training time"]] if "training time" in shown else [])]),
        "facts": shown.items(),
        "not_finite": facts.not_finite,
        "large": large,
        "small": small,
    }
