"""Validate `nemotron plan` against published runs: fit its coefficients, and predict each run from the others.

python benchmarks/plan.py            # the tables
python benchmarks/plan.py --write    # and put them into docs/plan.md

Leaves out each run alone, then with all runs of its model, then with all of its GPU. The coefficients of all runs
together are in `nemotron_engines.estimate.speed`.
"""

import argparse
import json
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy import optimize

from nemotron_engines.estimate.memory import Layout
from nemotron_engines.estimate.speed import terms, work_of
from nemotron_engines.estimate.training import VOCABULARY
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.engine.needs import duration
from nemotron_shared.machine.machine import DEVICES
from nemotron_shared.system.disk import size

ROWS = Path(__file__).with_name("plan_rows.yaml")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "plan.md"
SHOWN = {"result": size, "memory": size, "step": duration, "seconds": duration, "tokens/s": "{:,.0f}".format}
BEGIN, END = "<!-- judged -->\n", "<!-- end of judged -->"


class Run(NamedTuple):
    """A published run: its settings, its terms (seconds before the coefficients), and seconds per token and GPU."""

    row: dict[str, Any]
    terms: tuple[float, ...]
    seconds: float


def main() -> None:
    """Print the tables, and write them with `--write`."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--write", action="store_true", help="put the tables into docs/plan.md")
    asked = words.parse_args()
    found = judged(published()) + "\n" + guides()
    print(found, end="")
    if asked.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + found + END + rest.partition(END)[2], encoding="utf-8")


def published() -> list[Run]:
    """The rows of plan_rows.yaml."""
    sources = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    return [_run({"from": source} | row) for source, rows in sources.items() if source != "guides" for row in rows]


def _run(row: dict[str, Any]) -> Run:
    layout = Layout(row["gpus"], row["rows"], row["seq"], row["micro"], tensor=row["tp"], expert=row["ep"])
    fields = load_architecture(row["model"], {})
    work = work_of(fields, VOCABULARY, row["seq"], predictions=row.get("predictions", 0))
    return Run(row, terms(work, DEVICES[row["gpu"]], layout), 1 / row["tokens"])


def fitted(runs: list[Run]) -> list[float]:
    """Coefficients with the least squared relative errors, all nonnegative."""
    matrix = np.array([run.terms for run in runs]) / np.array([[run.seconds] for run in runs])
    return optimize.nnls(matrix, np.ones(len(runs)))[0].tolist()


def predicted(runs: list[Run], same: str | None = None) -> list[float]:
    """Tokens per second and GPU of each run from the others; `same`: only from those with another value of this key."""
    found = []
    for index, run in enumerate(runs):
        others = [one for place, one in enumerate(runs) if (one.row[same] != run.row[same] if same else place != index)]
        found.append(1 / sum(a * b for a, b in zip(fitted(others), run.terms, strict=True)))
    return found


def judged(runs: list[Run]) -> str:
    """The table of all runs and the errors, as Markdown."""
    alone, model, gpu = (predicted(runs, same) for same in (None, "model", "gpu"))
    lines = [
        "| model | GPUs | precision | layout | published tokens/s/GPU | predicted from the others | error |",
        "|---|---|---|---|--:|--:|--:|",
    ]
    for run, said in zip(runs, alone, strict=True):
        row = run.row
        layout = f"TP {row['tp']}, EP {row['ep']}, {row['micro']} x {row['seq']}"
        where = f"{row['gpus']} {row['gpu']}"
        precision = f"{row['precision']} ({row['from']}{' ' + row['container'] if 'container' in row else ''})"
        error = 100 * (said / row["tokens"] - 1)
        cells = [row["model"], where, precision, layout, f"{row['tokens']:,}", f"{said:,.0f}", f"{error:+.0f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| left out | median error | mean | largest |", "|---|--:|--:|--:|"]
    for name, values in (("each run alone", alone), ("all runs of its model", model), ("all runs of its GPU", gpu)):
        errors = [abs(said / run.row["tokens"] - 1) for run, said in zip(runs, values, strict=True)]
        shown = [f"{100 * value:.1f} %" for value in (statistics.median(errors), statistics.mean(errors), max(errors))]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    operations, traffic, layer = fitted(runs)
    lines += [
        "",
        f"Coefficients from all runs: operations take {operations:.3f} times as long as at the data sheet's speed in "
        f"bfloat16, memory traffic {traffic:.3f} times, and each layer in each pass {1000 * layer:.3f} ms.",
    ]
    return "\n".join(lines) + "\n"


def guides() -> str:
    """Published guides next to our plans; the ratio is to the nearer bound, and 1 between them."""
    lines = ["| the guides say | `nemotron plan` | planned | ratio |", "|---|---|--:|--:|"]
    for row in yaml.safe_load(ROWS.read_text(encoding="utf-8"))["guides"]:
        value = _planned(row["plan"], row["part"])
        ratio = value / (
            row["low"] if value < row["low"] else max(value, 1e-9) if value <= row["high"] else row["high"]
        )
        lines.append(f"| {row['said']} | {row['plan']} | {SHOWN[row['part']](value)} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


@cache
def _estimate(plan: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "nemotron_app.main", "plan", *plan.split(), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]["estimate"]


def _planned(plan: str, part: str) -> float:
    estimate = _estimate(plan)
    step = sum(estimate["step_seconds"].values())
    parts = {"memory": sum(estimate["memory"].values()), "step": step, "tokens/s": estimate["tokens_per_step"] / step}
    return parts[part] if part in parts else estimate[part]


if __name__ == "__main__":
    main()
