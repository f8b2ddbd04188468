"""The report in the terminal: a table for people, JSON for programs.

made          time   amount       key metric        sums right answers
sft-data:v1   2.3 s  160k tokens  0 rejected
sft-model:v1  41 s   200 steps    valid loss 0.412  41.2% [36.5, 46.1]
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_app import rich_table
from nemotron_app.report import wording
from nemotron_app.report.collect import STEPS, Collected
from nemotron_app.report.findings import MODEL_OF_STAGE, overlap_in_short, score_of
from nemotron_app.report.results import shown_task
from nemotron_app.report.tables import rejected_rows
from nemotron_app.report.times import seconds_of
from nemotron_app.report.training import facts, key_metric
from nemotron_shared.stages import RESULTS

if TYPE_CHECKING:
    from rich.console import Console

PLAIN = str.maketrans("–−", "--")


def print_report(collected: Collected, html_path: Path, console: "Console | None" = None) -> None:
    """One line per artifact, then the path of the page; ASCII only if the output is not a terminal."""
    console = console or rich_table.open_console()
    results, task = collected.results, shown_task(collected.results)
    score = f"{task} {wording.metric_name(results['tasks'][task]['metric'])}" if task else "score"
    rows = [_row(collected, kind) for kind in STEPS]
    if not console.is_terminal:
        rows = [[cell.translate(PLAIN).encode("ascii", "replace").decode() for cell in row] for row in rows]
    title = " ".join(filter(None, (collected.family, collected.config)))
    console.print(rich_table.text_of(console, title, "bold"))
    table = rich_table.Table(["made", "time", "amount", "key metric", score], rows)
    rich_table.print_table(console, table, wrapped="key metric")
    for problem in collected.problems:
        console.print(rich_table.text_of(console, f"warning: {problem}"), soft_wrap=True)
    if collected.newer:
        console.print(rich_table.text_of(console, f"{wording.NEWER} {', '.join(collected.newer)}"), soft_wrap=True)
    for evaluation in (one for one in collected.newer if f"-{RESULTS}:" in one):
        own = f"the report of {evaluation}: nemotron report {evaluation}"
        console.print(rich_table.text_of(console, own), soft_wrap=True)
    console.print(rich_table.text_of(console, f"report: {html_path}"), soft_wrap=True)


def _row(collected: Collected, kind: str) -> list[str]:
    """Artifact, time, amount, key metric and score."""
    artifact, results = collected.artifacts.get(kind), collected.results
    if artifact is None:
        return [f"no {kind}", "", "", "", ""]
    trained = facts(collected.metrics.get(kind.removesuffix("-model"), []))
    amount, score = "", ""
    if kind.endswith("-model"):
        value, name = key_metric(trained) or ("", "")
        amount = "" if trained.steps is None else wording.counted(trained.steps, "step")
        key = f"{name.replace('validation', 'valid')} {value}".strip()
        if entry := _score(collected, kind):
            number, low, high = (wording.value(entry["metric"], x) for x in (entry["value"], *entry["ci95"]))
            score = f"{number} [{low.rstrip('%')}, {high.rstrip('%')}] {wording.cut(entry.get('cut'))}".rstrip()
    elif kind == RESULTS:
        amount, key = wording.counted(len(results["tasks"]), "task"), overlap_in_short(results)
    else:
        metadata = artifact.manifest.metadata
        groups = [*metadata.get("splits", {}).values(), *metadata.get("tasks", {}).values()]
        for unit in ("rows", "tokens"):  # tokens, if counted
            if known := [group[unit] for group in groups if unit in group]:
                amount = f"{wording.short_count(sum(known))} {unit}"
        key = f"{sum(rejected_rows(metadata).values()):,} rejected"
    step = collected.pipeline_step(kind)
    seconds = seconds_of(artifact)
    took = "reused" if step.get("reused") else wording.duration(trained.seconds if seconds is None else seconds)
    return [artifact.reference.removeprefix(f"{collected.family}-"), took, amount, key, score]


def summary(collected: Collected) -> dict[str, Any]:
    """The table and all scores as plain JSON values."""
    steps = []
    for kind, name in STEPS.items():
        artifact = collected.artifacts.get(kind)
        step: dict[str, Any] = {
            "step": name,
            "artifact": artifact and artifact.reference,
            "absent": collected.absent.get(kind),
            "created_at": artifact and artifact.manifest.created_at,
            "seconds": artifact and seconds_of(artifact),
            "pipeline": collected.pipeline_step(kind) or None,
        }
        if kind.endswith("-model"):
            trained = facts(collected.metrics.get(kind.removesuffix("-model"), []))
            step |= {"training": dataclasses.asdict(trained), "score": _score(collected, kind)}
        steps.append(step)
    found = {
        "family": collected.family,
        "config": collected.config,
        "newest": collected.when,
        "steps": steps,
        "problems": collected.problems,
        "newer": collected.newer,
        **{key: collected.results[key] for key in ("tasks", "scores", "comparisons", "overlap")},
    }
    # JSON has no NaN or infinity: they become null.
    return json.loads(json.dumps(found), parse_constant=lambda _: None)


def _score(collected: Collected, kind: str) -> Mapping[str, Any] | None:
    model = MODEL_OF_STAGE.get(kind.removesuffix("-model"))
    return score_of(collected.results, model, shown_task(collected.results)) if model else None
