"""The report's figures in the terminal: a table for people, JSON for programs.

step              made                     time        amount         key figure             sums exact match
sft data prep     super3-sft-data:v1       2.3 s       163.8k tokens  6,000 rows, 0 rejected
sft               super3-sft-model:v1      41 s        200 steps      validation loss 0.412  41.2% [36.5%, 46.1%]
"""

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_shared.report import tables, wording
from nemotron_shared.report.collect import RESULTS, STEPS, Collected, sample_task
from nemotron_shared.report.findings import MODEL_OF_STAGE, score_of
from nemotron_shared.report.training import Facts, facts, key_figure

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_IN_A_PIPE = 160
ASCII = str.maketrans({"–": "-", "−": "-"})


def print_table(collected: Collected, html_path: Path, console: "Console | None" = None) -> None:
    """One line for each artifact, then where the page is; in ASCII where the output is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE)
    plain = not console.is_terminal or console.options.ascii_only
    table = Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in _headings(collected):
        table.add_column(Text(heading), overflow="fold")
    for row in rows(collected):
        # As Text and not as markup: a name such as "[red]" stays what it is.
        table.add_row(*(Text(_ascii(cell) if plain else cell) for cell in row))
    console.print(table)
    console.print(Text(f"report: {html_path}"), soft_wrap=True)


def rows(collected: Collected) -> list[list[str]]:
    """Cells of the table, below `step, made, time, amount, key figure, score`."""
    return [_row(collected, kind) for kind in STEPS]


def summary(collected: Collected) -> dict[str, Any]:
    """The same figures, and all scores, as plain JSON values."""
    results = collected.results or {}
    figures = {
        "family": collected.family,
        "config": collected.config,
        "newest": collected.when,
        "steps": [_step_summary(collected, kind) for kind in STEPS],
        "tasks": results.get("tasks", {}),
        "scores": results.get("scores", []),
        "comparisons": results.get("comparisons", []),
        "overlap": results.get("overlap", {}),
    }
    return _finite(figures)


def _headings(collected: Collected) -> list[str]:
    results = collected.results or {"scores": []}
    task = sample_task(results)
    score = f"{task} {wording.metric_name(results['tasks'][task]['metric'])}" if task else "score"
    return ["step", "made", "time", "amount", "key figure", score]


def _row(collected: Collected, kind: str) -> list[str]:
    artifact = collected.artifacts.get(kind)
    if artifact is None:
        return [STEPS[kind], "–", "", "", "", ""]
    known = _facts(collected, kind)
    step = collected.pipeline_step(kind)
    seconds = step.get("seconds", known.seconds)
    took = "reused" if step.get("reused") else wording.duration(seconds)
    return [STEPS[kind], artifact.reference, took, *_figures(collected, kind, known), _score(collected, kind)]


def _figures(collected: Collected, kind: str, known: Facts) -> tuple[str, str]:
    """Amount and key figure."""
    metadata = collected.artifacts[kind].manifest.metadata
    if kind.endswith("-model"):
        value, name = key_figure(known) or ("", "")
        return f"{wording.count(known.steps)} steps" if known.steps is not None else "", f"{name} {value}".strip()
    if kind == RESULTS:
        results = collected.results or {"tasks": {}, "models": {}}
        found = sum(entry["found"] for entry in results.get("overlap", {}).values())
        checked = f"{found} in training data" if results.get("overlap") else ""
        return f"{len(results['tasks'])} tasks, {len(results['models'])} models", checked
    rejected = wording.count(sum(tables.rejected_rows(metadata).values()))
    return tables.amount(metadata), f"{rejected} rejected"


def _score(collected: Collected, kind: str) -> str:
    entry = _score_entry(collected, kind)
    if entry is None:
        return ""
    value, low, high = (wording.value(entry["metric"], number) for number in (entry["value"], *entry["ci95"]))
    return f"{value} [{low}, {high}]"


def _score_entry(collected: Collected, kind: str) -> Any:
    model = MODEL_OF_STAGE.get(kind.removesuffix("-model"))
    if not collected.results or model is None:
        return None
    return score_of(collected.results, model, sample_task(collected.results))


def _step_summary(collected: Collected, kind: str) -> dict[str, Any]:
    artifact = collected.artifacts.get(kind)
    summary = {
        "step": STEPS[kind],
        "artifact": artifact and artifact.reference,
        "absent": collected.absent.get(kind),
        "created_at": artifact and artifact.manifest.created_at,
        "pipeline": collected.pipeline_step(kind) or None,
    }
    if kind.endswith("-model"):
        summary |= {"training": dataclasses.asdict(_facts(collected, kind)), "score": _score_entry(collected, kind)}
    return summary


def _facts(collected: Collected, kind: str) -> Facts:
    return facts(collected.metrics.get(kind.removesuffix("-model"), []))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ascii(text: str) -> str:
    return text.translate(ASCII).encode("ascii", "replace").decode()
