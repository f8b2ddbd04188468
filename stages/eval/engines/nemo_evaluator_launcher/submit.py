"""Evaluate one model with NVIDIA's tasks in containers, on a Slurm cluster or with Docker on this machine.

nemo-evaluator-launcher serves the model and runs the tasks; this process submits, waits and reads the results.
There are scores and no samples, so models are not compared in pairs.
"""

from pathlib import Path
from typing import Any

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.console import doing
from nemotron_shared.runtime.spec import Outcome, Task
from stages.eval.evaluate import LABELS, outcome, result_name, write_results
from stages.eval.evaluator_section import NemoEvaluatorLauncherEngine
from stages.eval.harness import find_program, reported_results
from stages.eval.intervals import Z95, wilson
from stages.eval.launcher_config import chosen, rendered_config
from stages.eval.launcher_jobs import Launcher
from stages.eval.schema import EvalConfig

LauncherTask = Task[EvalConfig[NemoEvaluatorLauncherEngine]]
# The metric that stands for a task, where it has it: the first of these, else the task's first.
PREFERRED = ("acc_norm", "acc", "exact_match")


def evaluate(task: LauncherTask) -> Outcome:
    """Submit, wait, and write the results."""
    results = distributed.on_rank_zero(lambda: _evaluate(task))
    return outcome(task.run.output, results)


def _evaluate(task: LauncherTask) -> dict[str, Any]:
    config, model = task.config, task.inputs["model"]
    engine = config.engine
    program = find_program("nemo-evaluator-launcher", engine.launcher, "engine.launcher")
    rendered = rendered_config(config, str(model.path) if model else None)
    launcher = Launcher(program, task.run, telemetry=engine.telemetry)
    doing("waiting for nemo-evaluator-launcher")
    names = [one.name for one in chosen(engine, config.evaluation.tasks)]
    launcher.require_tasks(names)
    if engine.execution.type == "slurm":
        launcher.require_login(str(engine.execution.username), str(engine.execution.hostname))
    with task.run.watched():  # a submission is noted before a signal ends this; then only the looking ends
        invocation = launcher.submit(rendered)
        launcher.wait(invocation, engine.poll_interval)
    folders = launcher.fetch(invocation, task.run.directory / "fetched", names)
    results = summarise(task, folders, invocation)
    files = {f"benchmarks/{name}.yml": (folder / "results.yml").read_text("utf-8") for name, folder in folders.items()}
    write_results(task.run, results, files)
    return results


def summarise(task: LauncherTask, folders: dict[str, Path], invocation: str) -> dict[str, Any]:
    """results.json, in the form of the other engines."""
    model = task.inputs["model"]
    name = result_name(model, "rl") if model else task.config.engine.deployment.served_model_name
    scores = {benchmark: benchmark_score(benchmark, folder) for benchmark, folder in folders.items()}
    return {
        "schema_version": 1,
        "tasks": {
            benchmark: {
                "kind": "benchmark",
                "metric": score["metric"],
                "lower_is_better": False,
                "n": score["n"],
                "n_unique": score["n"],
            }
            for benchmark, score in scores.items()
        },
        "models": {name: {"reference": model and model.reference, "label": LABELS.get(name, name)}},
        "scores": [{"model": name, "task": benchmark, **score} for benchmark, score in scores.items()],
        "comparisons": [],
        "overlap": {},
        "settings": {
            "engine": task.config.engine.name,
            "limit": task.config.evaluation.limit,
            "invocation": invocation,
            "params": task.config.engine.params.model_dump(),
        },
    }


def benchmark_score(name: str, folder: Path) -> dict[str, Any]:
    """Score of one benchmark from its results.yml; `n` from lm-eval's own results beside it.

    Raises:
        UserError: there is no score in it, or nothing that tells how sure it is.
    """
    found = reported_results(folder / "results.yml", "groups") or reported_results(folder / "results.yml", "tasks")
    metrics = next(iter(found.values()), {})
    if not metrics:
        raise UserError(f"{folder / 'results.yml'}: no score of '{name}'")
    label = next((one for metric in PREFERRED for one in metrics if one.split("__")[0] == metric), next(iter(metrics)))
    value, error = metrics[label]["value"], metrics[label].get("stats", {}).get("stderr")
    # rows asked, over all parts of a benchmark; 0 where the harness does not say
    own = sorted(folder.rglob("results_*.json"))
    counts = read_json(own[-1]).get("n-samples", {}) if own else {}
    n = sum(int(count["effective"]) for count in counts.values())
    if error is None and not (n and 0 <= value <= 1):
        raise UserError(f"{folder / 'results.yml'}: '{name}' has neither a standard error nor a number of rows")
    low, high = (value - Z95 * error, value + Z95 * error) if error is not None else wilson(value * n, n)
    return {
        "metric": label.split("__")[0],
        "value": value,
        "stderr": error,
        "ci95": [low, high],
        "n": n,
        "all_metrics": {one: about["value"] for one, about in metrics.items()},
    }
