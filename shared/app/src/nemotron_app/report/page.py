"""The HTML page: one file that needs nothing else, not even a network.

Everything that comes from data is text to the template, which escapes it. The style sheet is part of the page;
its content-security policy forbids to load anything.
"""

from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from nemotron_app.report import findings, tables, training, wording
from nemotron_app.report.collect import Collected, sample_task
from nemotron_app.report.samples import choose_questions
from nemotron_shared.stages import STAGES, TRAINING

COLOURED = (*findings.MODEL_OF_STAGE.values(), "random")


@dataclass(frozen=True)
class Stage:
    """One training stage on the page.

    `number` and `about` are the figure that stands for it; `sentence` says what the stage added.
    """

    name: str
    title: str
    model: str
    reference: str | None
    absent: str | None
    number: str
    about: str
    sentence: str
    foot: str
    facts: list[tuple[str, str]]
    not_finite: int
    drawings: training.Drawings


def render(collected: Collected) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("nemotron_app.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html.jinja").render(_view(collected))


def colour(model: str) -> str:
    """Style class of a model: the same colour for the same stage everywhere."""
    return model if model in COLOURED else "other"


def _view(collected: Collected) -> dict[str, Any]:
    results = collected.results
    return {
        "collected": collected,
        "metric_name": wording.metric_name,
        "colour": colour,
        "labels": {name: model["label"] for name, model in results["models"].items()},
        "when": wording.moment(collected.when),
        "total_time": wording.duration(collected.pipeline["seconds"]) if "seconds" in collected.pipeline else None,
        "parameters": _parameters(collected),
        "headline": findings.headline(results),
        "stages": [_stage(collected, stage.name) for stage in TRAINING],
        "tasks": findings.task_scores(results),
        "changes": findings.task_changes(results),
        "overlap": results["overlap"],
        "settings": tables.settings(results),
        "sample_task": sample_task(results),
        "questions": _questions(collected),
        "asked": max(map(len, collected.samples.values()), default=0),
        "data": tables.data(collected),
        "steps": tables.steps_table(collected),
        "versions": tables.environment(collected),
        "code": tables.code_table(collected),
        "commands": tables.commands(collected),
    }


def _questions(collected: Collected) -> list[Any]:
    """Of models that learned something, where there are such."""
    results = collected.results
    trained = [model for model in findings.in_order(results, "model") if results["models"][model]["reference"]]
    models = [model for model in trained or list(results["models"]) if model in collected.samples]
    return choose_questions(collected.samples, models)


def _stage(collected: Collected, stage: str) -> Stage:
    artifact = collected.artifacts.get(STAGES[stage].result.kind)
    facts = training.facts(collected.metrics[stage])
    number, about = _stage_number(collected, stage, facts)
    return Stage(
        name=stage,
        title=STAGES[stage].title,
        model=findings.MODEL_OF_STAGE[stage],
        reference=artifact.reference if artifact else None,
        absent=collected.absent.get(STAGES[stage].result.kind),
        number=number,
        about=about,
        sentence=findings.stage_sentence(collected.results, stage) or "Not evaluated.",
        foot=_foot(facts),
        facts=stage_facts(facts),
        not_finite=facts.not_finite,
        drawings=training.drawings(collected.metrics[stage]),
    )


def _stage_number(collected: Collected, stage: str, facts: training.Facts) -> tuple[str, str]:
    score = findings.stage_score(collected.results, stage)
    if score:
        metric = score["metric"]
        return wording.value(metric, score["value"]), f"{wording.metric_name(metric)}, {score['task']}"
    return training.key_figure(facts) or ("–", "")


def stage_facts(facts: training.Facts) -> list[tuple[str, str]]:
    """What a training run took and reached."""
    known = [
        ("steps", facts.steps, wording.count),
        ("tokens", facts.tokens, wording.short_count),
        ("tokens per second", facts.tokens_per_second, wording.count),
        ("training time", facts.seconds, wording.duration),
        (f"loss, last {training.LAST_POINTS}", facts.loss if facts.reward is None else None, wording.figure),
        ("validation loss", facts.valid_loss if facts.reward is None else None, wording.figure),
        (f"reward, last {training.LAST_POINTS}", facts.reward, wording.figure),
        ("validation reward", facts.valid_reward, wording.figure),
    ]
    return [(name, write(value)) for name, value, write in known if value is not None]


def _foot(facts: training.Facts) -> str:
    """`300 steps · 1.2M tokens · 1 min 1 s`."""
    parts = [
        f"{wording.count(facts.steps)} steps" if facts.steps is not None else "",
        f"{wording.short_count(facts.tokens)} tokens" if facts.tokens is not None else "",
        wording.duration(facts.seconds) if facts.seconds is not None else "",
    ]
    return " · ".join(filter(None, parts))


def _parameters(collected: Collected) -> str | None:
    numbers = [found.manifest.metadata.get("parameters") for found in collected.artifacts.values()]
    known = [number for number in numbers if isinstance(number, int)]
    return wording.short_count(known[-1]) if known else None
