"""Score every model on every task, compare them in pairs, and write results.json.

    artifact/results.json                    scores, intervals, comparisons, overlap check, settings
    artifact/samples/<model>/<task>.jsonl    every question, answer and score

Each model's samples are saved to the run folder as soon as they are complete, so a rerun after a kill evaluates only
the missing models. With several processes, each evaluates its share of the models.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from nemotron_data.formats.eval_tasks import EvalTask, read_tasks
from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.names import prefix_of
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.families import families
from nemotron_shared.models.references import name_from_outside
from nemotron_shared.stages import STAGES, TRAINING
from nemotron_shared.system import distributed
from nemotron_shared.system.atomic import read_json, write_json, write_text
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run
from stages.eval.held_out import held_out_tasks
from stages.eval.overlap import as_lines, check_overlap
from stages.eval.schema import EvalConfig, EvaluationSection
from stages.eval.scorers import scored_kinds, scorer_problems
from stages.eval.scoring import LOWER_IS_BETTER, METRICS, compare, score
from stages.eval.tasks import unknown_tasks

RANDOM = "random"
# Role in the config's run section -> name in the results; that name -> label for people.
ROLES = {stage.role: stage.model for stage in TRAINING if stage.role and stage.model}
LABELS = {RANDOM: "random weights"} | {stage.model: stage.label for stage in TRAINING if stage.model and stage.label}

Samples = dict[str, list[dict[str, Any]]]
Tasks = Mapping[str, EvalTask]
EvaluateModel = Callable[[Artifact | None, Tasks], Samples]


def evaluate(task: Task[EvalConfig], evaluate_model: EvaluateModel) -> Outcome:
    """Run the tasks on the models and write the results."""
    tasks = chosen_tasks(task)
    models, scored = models_to_score(task), task.run.checkpoints / "scored"
    for name in list(models)[distributed.rank() :: distributed.world_size()]:
        task.run.stop_if_requested()
        file, model = scored / f"{name}.json", models[name]
        if not file.is_file():
            task.run.say(f"asking {label_of(name, model)}" + (f" ({model.reference})" if model else ""))
            write_json(file, evaluate_model(model, tasks))
    distributed.barrier()
    samples = {name: read_json(scored / f"{name}.json", most=None) for name in models}
    for row in (row for by_task in samples.values() for rows in by_task.values() for row in rows):
        if (verdict := task.config.evaluation.verdict) in row:
            row["score"] = row[verdict]
    results = distributed.on_rank_zero(
        lambda: summarise(task, tasks, scored_kinds(task.config.evaluation, tasks, samples), models, samples)
    )
    files = {
        f"samples/{model}/{name}.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for model, by_task in samples.items()
        for name, rows in by_task.items()
    }
    output = distributed.on_rank_zero(lambda: write_results(task.run, results, files))
    return outcome(output, results)


def chosen_tasks(task: Task[EvalConfig]) -> dict[str, EvalTask]:
    """The data's tasks that the config selects, by name.

    Raises:
        UserError: a task has no rows, or is not there: the data of the model decides which held-out tasks there are.
    """
    known = {} if task.inputs["data"] is None else read_tasks(task.input("data").path)
    known |= held_out_tasks(task) if task.config.evaluation.held_out else {}
    kinds = {name: about.kind for name, about in known.items()}
    for found in (*unknown_tasks(task.config.evaluation, known), *scorer_problems(task.config.evaluation, kinds)):
        raise UserError(found.message, found.remedy)
    chosen = {name: known[name] for name in task.config.evaluation.tasks or known}
    if empty := [name for name, about in chosen.items() if not about.rows]:
        others = " ".join(f"-t {name}" for name in chosen if name not in empty)
        what = f"the task '{empty[0]}' has no rows to score"
        raise UserError(what, f"prepare its data again{f', or leave it out: {others}' if others else ''}")
    return chosen


def models_to_score(task: Task[EvalConfig]) -> dict[str, Artifact | None]:
    """Models by their name in the results, in the order of training; None stands for random weights."""
    found: dict[str, Artifact | None] = {}
    if task.config.evaluation.random_baseline or task.inputs["model"] is None:
        found[RANDOM] = None
    digests = set()
    for role, usual_name in ROLES.items():
        artifact = task.inputs.get(role)
        if artifact is not None and artifact.manifest.digest not in digests:
            digests.add(artifact.manifest.digest)
            name = result_name(artifact, usual_name)
            found[name if name not in found else artifact.reference.replace(":", "-")] = artifact
    return found


def result_name(artifact: Artifact, usual: str) -> str:
    """`base`, `sft` or `rl` by the stage that made a model, else its own name."""
    made_by = STAGES.get(artifact.manifest.producer.stage)
    return made_by.model if made_by and made_by.model else artifact.manifest.name


def label_of(name: str, model: Artifact | None) -> str:
    """The model for people: `after SFT` in a family, `after SFT (qwen3)` of another model, `qwen3` of one from outside.

    Args:
        name: in the results.
    """
    if model is None or (label := LABELS.get(name)) is None:
        return LABELS.get(name) or name_from_outside(name)
    prefix = prefix_of(model.manifest.name)
    return label if prefix is None or prefix in families() else f"{label} ({prefix})"


def labels_of(models: Mapping[str, Artifact | None]) -> list[str]:
    """See `label_of`; models that people know by the same name have those of the results."""
    labels = [label_of(name, model) for name, model in models.items()]
    return [label if labels.count(label) == 1 else name for name, label in zip(models, labels, strict=True)]


def summarise(
    task: Task[EvalConfig],
    tasks: Tasks,
    kinds: Mapping[str, str],
    models: Mapping[str, Artifact | None],
    samples: Mapping[str, Samples],
) -> dict[str, Any]:
    """Contents of results.json.

    Args:
        kinds: of the scores, by task.
    """
    names = list(models)
    steps = list(pairwise(names))
    unused = {name for name in EvaluationSection.extra_keys() if not getattr(task.config.evaluation, name)}
    return {
        "schema_version": 1,
        "tasks": {name: _describe(kind, samples[names[0]][name]) for name, kind in kinds.items()},
        "models": {
            name: {"reference": model and model.reference, "label": label}
            for (name, model), label in zip(models.items(), labels_of(models), strict=True)
        },
        "scores": [
            {"model": model, "task": name, **score(kind, samples[model][name])}
            for name, kind in kinds.items()
            for model in names
        ],
        "comparisons": [
            {"task": name, "from": old, "to": new, **compare(kind, samples[old][name], samples[new][name])}
            for name, kind in kinds.items()
            for old, new in steps
        ],
        "overlap": check_overlap(task, tasks, models) if task.config.evaluation.check_overlap else {},
        "settings": {
            **{name: value for name, value in task.config.evaluation.model_dump().items() if name not in unused},
            "engine": task.config.engine.name,
            "seed": task.config.run.seed,
            "greedy": not task.config.evaluation.temperature,
            "chat_template": "generation tasks only",
        },
    }


def _describe(kind: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    metric = METRICS[kind]
    return {
        "kind": kind,
        "metric": metric,
        "lower_is_better": metric in LOWER_IS_BETTER,
        "n": len(samples),
        "n_unique": len({sample.get("question", sample["id"]) for sample in samples}),
    }


def write_results(run: Run, results: dict[str, Any], files: Mapping[str, str]) -> Path:
    """Write the artifact's folder, with the text of `files` by path, and print the table of scores."""
    output = run.fresh_output()
    for name, text in files.items():
        write_text(output / name, text)
    write_json(output / "results.json", results)
    write_text(output / "results.md", as_table(results))
    run.say("\n".join(["scores:", *score_lines(results)]))
    for line in other_verdict(results):
        run.say(line)
    for line in as_lines(results["overlap"]):
        run.say(f"overlap with training data: {line}" if not line.startswith(" ") else line)
    return output


MUCH = 0.2
"""Share of answers from which on a difference between the two verdicts is reported."""


def other_verdict(results: dict[str, Any]) -> Iterator[str]:
    """Where many answers have the right value, and not in the form that the strict verdict asks for."""
    for entry in results["scores"]:
        if entry["metric"] == METRICS["generate"] and entry.get("lenient", 0.0) - entry["value"] >= MUCH:
            label = results["models"][entry["model"]]["label"]
            yield (
                f"{entry['task']}, {label}: {entry['lenient']:.1%} of the answers have the right value in any form, "
                "such as within a sentence: evaluation.verdict=lenient counts these (docs/answers.md)"
            )


def outcome(output: Path, results: dict[str, Any]) -> Outcome:
    """Summary of the results for the manifest, with scores like `sums/rl: 0.93`."""
    scores = {f"{entry['task']}/{entry['model']}": entry["value"] for entry in results["scores"]}
    return Outcome(output, {"tasks": sorted(results["tasks"]), "models": results["models"]}, scores)


def as_table(results: dict[str, Any]) -> str:
    """Scores with 95% intervals as a Markdown table, with the share of answers cut at the length limit."""
    lines = ["| task | metric | n | model | value | 95% interval | cut |", "|---|---|--:|---|--:|---|--:|"]
    for entry in results["scores"]:
        low, high = entry["ci95"]
        label = results["models"][entry["model"]]["label"]
        about, cut = f"| {entry['task']} | ", f"{entry['cut']:.1%}" if "cut" in entry else ""
        lines.append(
            f"{about}{entry['metric']} | {entry['n']} | {label} | {entry['value']:.3f} "
            f"| {low:.3f} to {high:.3f} | {cut} |"
        )
        for k, share in entry.get("pass_at_k", {}).items():
            lines.append(f"{about}pass@{k} | {entry['n']} | {label} | {share:.3f} | | |")
    return "\n".join(lines) + "\n"


def score_lines(results: dict[str, Any]) -> Iterator[str]:
    """The same for a terminal of 80 columns: the models below each task."""
    labels = {name: model["label"] for name, model in results["models"].items()}
    width, task = max(map(len, labels.values()), default=0), None
    for entry in results["scores"]:
        if entry["task"] != task:
            task = entry["task"]
            yield f"  {task}: {entry['metric']}, n={entry['n']}"
        low, high = entry["ci95"]
        cut = f"  {entry['cut']:.1%} cut" if entry.get("cut") else ""
        yield f"    {labels[entry['model']]:<{width}} {entry['value']:8.3f}  {low:.3f} to {high:.3f}{cut}"
        for k, share in entry.get("pass_at_k", {}).items():
            yield f"    {'':<{width}} {share:8.3f}  pass@{k}"
