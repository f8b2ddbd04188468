"""The report's figures in the terminal: a table for people, JSON for programs.

made          time   amount       key figure        sums exact match
sft-data:v1   2.3 s  160k tokens  0 rejected
sft-model:v1  41 s   200 steps    valid loss 0.412  41.2% [36.5, 46.1]
"""

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_app.report import tables, wording
from nemotron_app.report.collect import STEPS, Collected, sample_task
from nemotron_app.report.findings import MODEL_OF_STAGE, score_of
from nemotron_app.report.training import Facts, facts, key_figure
from nemotron_shared.stages import RESULTS

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_IN_A_PIPE = 160
ASCII = str.maketrans({"–": "-", "−": "-"})


def print_table(collected: Collected, html_path: Path, console: "Console | None" = None) -> None:
    """One line for each artifact, then where the page is; in ASCII where the output is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console(width=None if sys.stdout.isatty() else WIDTH_IN_A_PIPE)
    plain = not console.is_terminal or console.options.ascii_only
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for heading in _headings(collected):
        table.add_column(Text(heading), no_wrap=heading != "key figure", overflow="fold")
    for row in rows(collected):
        # As Text and not as markup: a name such as "[red]" stays what it is.
        table.add_row(*(Text(_ascii(cell) if plain else cell) for cell in row))
    console.print(Text(" ".join(filter(None, (collected.family, collected.config))), style="bold"))
    console.print(table)
    console.print(Text(f"report: {html_path}"), soft_wrap=True)


def rows(collected: Collected) -> list[list[str]]:
    """Cells of the table: what was made, time, amount, key figure, score."""
    return [_row(collected, kind) for kind in STEPS]


def summary(collected: Collected) -> dict[str, Any]:
    """The same figures, and all scores, as plain JSON values."""
    results = collected.results
    figures = {
        "family": collected.family,
        "config": collected.config,
        "newest": collected.when,
        "steps": [_step_summary(collected, kind) for kind in STEPS],
        **{part: results[part] for part in ("tasks", "scores", "comparisons", "overlap")},
    }
    return _finite(figures)


def _headings(collected: Collected) -> list[str]:
    results = collected.results
    task = sample_task(results)
    score = f"{task} {wording.metric_name(results['tasks'][task]['metric'])}" if task else "score"
    return ["made", "time", "amount", "key figure", score]


def _row(collected: Collected, kind: str) -> list[str]:
    artifact = collected.artifacts.get(kind)
    if artifact is None:
        return [f"no {kind}", "", "", "", ""]
    known = _facts(collected, kind)
    step = collected.pipeline_step(kind)
    seconds = step.get("seconds", known.seconds)
    took = "reused" if step.get("reused") else wording.duration(seconds)
    made = artifact.reference.removeprefix(f"{collected.family}-")
    return [made, took, *_figures(collected, kind, known), _score(collected, kind)]


def _figures(collected: Collected, kind: str, known: Facts) -> tuple[str, str]:
    """Amount and key figure."""
    metadata = collected.artifacts[kind].manifest.metadata
    if kind.endswith("-model"):
        value, name = key_figure(known) or ("", "")
        return (
            f"{wording.count(known.steps)} steps" if known.steps is not None else "",
            f"{name.replace('validation', 'valid')} {value}".strip(),
        )
    if kind == RESULTS:
        results = collected.results
        found, asked = (sum(entry[part] for entry in results["overlap"].values()) for part in ("found", "of"))
        checked = f"overlap {found} of {asked}" if asked else ""
        return f"{len(results['tasks'])} tasks", checked
    rejected = wording.count(sum(tables.rejected_rows(metadata).values()))
    return tables.amount(metadata), f"{rejected} rejected"


def _score(collected: Collected, kind: str) -> str:
    entry = _score_entry(collected, kind)
    if entry is None:
        return ""
    value, low, high = (wording.value(entry["metric"], number) for number in (entry["value"], *entry["ci95"]))
    return f"{value} [{low.rstrip('%')}, {high.rstrip('%')}]"


def _score_entry(collected: Collected, kind: str) -> Any:
    model = MODEL_OF_STAGE.get(kind.removesuffix("-model"))
    return score_of(collected.results, model, sample_task(collected.results)) if model else None


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
