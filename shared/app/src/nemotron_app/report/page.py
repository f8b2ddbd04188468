"""Template values for the HTML page of the report."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from humanize import naturalsize

from nemotron_app import output, wording
from nemotron_app.completions import Kept, spread
from nemotron_app.output import Table
from nemotron_app.report import findings, training
from nemotron_app.report.collect import STEPS, Collected, seconds_of, total
from nemotron_app.report.findings import regressions
from nemotron_app.report.results import choose_questions, in_order, sample_task
from nemotron_app.report.training import facts
from nemotron_app.wording import minute
from nemotron_shared.stages import TRAINING, Stage
from nemotron_shared.tracking.completions import Completion, figures

SPLITS = ("train", "valid", "test")
COLUMNS = ("kind", "documents", "conversations", "rows", "packed_rows", "tokens", "trained_tokens", "fill")
READ = {"rows", "bytes"}
"""Counts of the source, which can exceed what was kept, or be less than what was made."""
Pairs = list[tuple[str, str]]


def data_table(metadata: Mapping[str, Any]) -> Table | None:
    """One row for each split or task of a data artifact, with a column for each value known of any of them."""
    first, groups = ("split", metadata["splits"]) if "splits" in metadata else ("task", metadata.get("tasks", {}))
    columns = _sorted({column for group in groups.values() for column in group}, COLUMNS)
    if not columns:
        return None
    rows = []
    for name in _sorted(groups, SPLITS):
        row = [name]
        for column in columns:
            value = groups[name].get(column, "")
            if column == "fill" and value != "":
                row.append(f"{value:.1%}")
            else:
                row.append(wording.number(value) if isinstance(value, int | float) else str(value))
        rows.append(row)
    return Table([first, *(column.replace("_", " ") for column in columns)], rows)


def data_counts(metadata: Mapping[str, Any]) -> Pairs:
    """All other counts of a data artifact: of its contents, and of its source."""
    read = {f"{name} read" if name in READ else name: value for name, value in metadata.get("counts", {}).items()}
    if "total_tokens" in metadata:
        read.pop("tokens", None)  # the same count
    return [
        (name.replace("_", " "), wording.number(value))
        for name, value in [*metadata.items(), *read.items()]
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def rejected_rows(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Refused rows of a data artifact, by reason."""
    return metadata.get("counts", {}).get("rejected", {})


def steps_table(collected: Collected) -> Table:
    """When each artifact was made, and how long it took."""
    rows = []
    for kind, artifact in collected.artifacts.items():
        made, loop = artifact.manifest, facts(collected.metrics.get(kind.removesuffix("-model"), [])).seconds
        attempts = f" (last of {len(made.segments)} attempts)" if len(made.segments) > 1 else ""
        whole = wording.duration(seconds_of(artifact)) + attempts
        row = [STEPS[kind], artifact.reference, minute(made.created_at), naturalsize(artifact.size)]
        rows.append([*row, wording.duration(loop), whole])
    return Table(["step", "made", "finished", "on disk", "training loop", "whole step"], rows)


def versions(collected: Collected) -> Pairs:
    """Versions and platform. If steps differ, each value with the steps that used it."""
    by_name: dict[str, dict[str, list[str]]] = {}
    for kind, artifact in collected.artifacts.items():
        for name, value in artifact.manifest.producer.environment.items():
            by_name.setdefault(name, {}).setdefault(str(value), []).append(STEPS[kind])
    return [
        (
            name,
            "; ".join(f"{value} ({', '.join(steps)})" if len(values) > 1 else value for value, steps in values.items()),
        )
        for name, values in by_name.items()
    ]


def machines(collected: Collected) -> Pairs:
    """The hardware that made each result, recorded by its last attempt."""
    by_machine: dict[str, list[str]] = {}
    for kind, artifact in collected.artifacts.items():
        machine = artifact.manifest.segments[-1].get("machine", {}) if artifact.manifest.segments else {}
        if "cores" in machine:
            parts = [machine["processor"], f"{machine['cores']} cores", f"{machine['memory_gb']:g} GB of memory"]
            parts += [machine["gpus"]] if "gpus" in machine else []
            parts += [f"{machine['processes']} processes"] if machine["processes"] > 1 else []
            by_machine.setdefault(", ".join(filter(None, parts)), []).append(STEPS[kind])
    return [(machine, ", ".join(steps)) for machine, steps in by_machine.items()]


def code_table(collected: Collected) -> Table:
    """The code and config that made each artifact."""
    rows = []
    for kind, artifact in collected.artifacts.items():
        made = artifact.manifest.producer
        commit = made.git[:12] + (", changed" if made.git.endswith("-dirty") else "") if made.git else "not recorded"
        digests = [made.code_digest[:12], made.config_digest[:12], artifact.manifest.digest[:12]]
        rows.append([STEPS[kind], f"{made.stage} {made.stage_version}", commit, *digests])
    return Table(["step", "stage", "git commit", "code", "config", "content"], rows)


def settings(results: Mapping[str, Any]) -> Pairs:
    """Settings of the evaluation, lists and nulls as JSON."""
    return [(name.replace("_", " "), wording.setting(value)) for name, value in results["settings"].items()]


def figures_table(results: Mapping[str, Any]) -> Table | None:
    """What each model's episodes were like, in means: turns, tool calls, and what the environment counted."""
    scores = [entry for entry in results["scores"] if entry["task"] == sample_task(results) and entry.get("figures")]
    if not scores:
        return None
    names = list(scores[0]["figures"])
    rows = [
        [results["models"][entry["model"]]["label"]]
        + [f"{entry['figures'].get(name, 0.0):.2f}" for name in names]
        + [f"{entry.get('cut', 0.0):.1%}"]
        for entry in scores
    ]
    return Table(["model", *(name.replace("_", " ") for name in names), "ended by a limit"], rows)


def _sorted(names: Iterable[str], first: Sequence[str]) -> list[str]:
    """Known names in the order of `first`, then the others by name, because JSON objects are unordered."""
    return sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))


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
        "figures_of": figures,
        "verdict": findings.verdict,
        "overlap_sentence": lambda task: findings.overlap_sentence(results, task),
        # one color per stage throughout
        "colour": lambda model: model if model in COLOURED else "other",
        "labels": {name: model["label"] for name, model in results["models"].items()},
        "when": minute(collected.when),
        "took": total(collected.artifacts.values()),
        "parameters": wording.short_count(known[-1]) if known else None,
        "headline": findings.headline(results),
        "stages": [_stage(collected, stage) for stage in TRAINING if stage.result.kind in collected.kinds],
        "scores": findings.by_task(results, "scores"),
        "changes": findings.by_task(results, "comparisons"),
        "regressions": regressions(collected),
        "settings": settings(results),
        "sample_task": sample_task(results),
        "questions": choose_questions(collected.samples, asked),
        "only_texts": bool(results["tasks"]) and {task["kind"] for task in results["tasks"].values()} == {"text"},
        "figures": figures_table(results),
        "asked": max(map(len, collected.samples.values()), default=0),
        "data": {kind: STEPS[kind] for kind in collected.kinds if kind.endswith("-data")},
        "data_table": data_table,
        "data_counts": data_counts,
        "rejected_rows": rejected_rows,
        "steps_table": steps_table(collected),
        "code_table": code_table(collected),
        "hardware": machines(collected),
        "versions": versions(collected),
        "commands": dict.fromkeys(found.manifest.producer.command for found in collected.artifacts.values()),
    }
    return output.render("report.html.jinja", values)


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
        ("training loop", facts.seconds, wording.duration),
        ("peak memory", facts.memory, lambda value: f"{value:.2f} GB"),
        (f"loss, last {training.LAST_POINTS}", None if reward else facts.loss, wording.number),
        ("validation loss", None if reward else facts.valid_loss, wording.number),
        (f"reward, last {training.LAST_POINTS}", facts.reward, wording.number),
        ("validation reward", facts.valid_reward, wording.number),
        ("validation pairs told apart", facts.valid_pair_accuracy, wording.number),
    ]
    shown = {name: write(value) for name, value, write in logged if value is not None}
    foot = [] if facts.steps is None else [wording.counted(facts.steps, "step")]
    foot += [f"{shown['tokens']} tokens"] if "tokens" in shown else []
    # of the whole step, as in the terminal: its start, saving and reading count too
    made = collected.artifacts.get(kind)
    whole = (seconds_of(made) if made else None) or facts.seconds
    foot += [] if whole is None else [wording.duration(whole)]
    large, small = training.panels(collected.metrics[stage.name])
    kept = collected.completions.get(stage.name)
    return {
        "title": stage.title,
        "model": stage.model,
        "reference": made and made.reference,
        "absent": collected.absent.get(kind),
        "number": number,
        "about": about,
        "sentence": findings.stage_sentence(collected.results, stage.name) or "Not evaluated.",
        "foot": " · ".join(foot),
        "facts": shown.items(),
        "not_finite": facts.not_finite,
        "large": large,
        "small": small,
        "samples": reward,
        "completions": [(step, _mean(collected, stage.name, step), ones) for step, ones in by_step(kept)]
        if kept
        else [],
    }


def _mean(collected: Collected, stage: str, step: int) -> str:
    """The step's mean reward, as it was logged."""
    found = [entry["reward"] for entry in collected.metrics[stage] if entry["step"] == step and "reward" in entry]
    return f"reward {wording.number(found[0])}" if found else "reward not known"


STEPS_SHOWN = 8


def by_step(kept: Kept) -> list[tuple[int, list[Completion]]]:
    """The first and the last step whose completions were kept, and some between them."""
    return [(step, kept.steps[step]) for step in spread(list(kept.steps), STEPS_SHOWN)]
