"""results.json of an evaluation, and the answers beside it, as a report reads them."""

import json
from pathlib import Path
from typing import Any

from nemotron_app.report.findings import by_task, headline, overlap_sentence, stage_sentence
from nemotron_app.report.results import choose_questions, read_results, read_samples
from nemotron_prove.input.second import fault_of, is_number, json_value, lines_of, require, require_shape
from nemotron_prove.input.target import Files, Target
from nemotron_prove.input.targets.rows import as_lines
from nemotron_prove.input.targets.store import manifest
from nemotron_shared.artifacts import Artifact


def _results() -> list[Files]:
    tasks = {
        "sums": {"kind": "generate", "metric": "right", "n": 4},
        "prose": {"kind": "text", "metric": "bits_per_byte", "n": 2, "lower_is_better": True},
    }
    scores = [
        {"task": task, "model": model, "metric": about["metric"], "value": 0.5, "ci95": [0.2, 0.8], "n": about["n"]}
        for task, about in tasks.items()
        for model in ("base", "sft")
    ]
    differ = [
        {
            "task": task,
            "from": "base",
            "to": "sft",
            "metric": about["metric"],
            "difference": 0.1,
            "ci95": [-0.1, 0.3],
            "n": about["n"],
        }
        for task, about in tasks.items()
    ]
    models = {name: {"label": name, "reference": None} for name in ("base", "sft")}
    overlap = {
        task: {"checked_against": [], "unknown": [], "examples": [], "found": 0, "of": 4, "exact": 0} for task in tasks
    }
    value = {
        "schema_version": 1,
        "tasks": tasks,
        "models": models,
        "scores": scores,
        "comparisons": differ,
        "overlap": overlap,
        "settings": {"limit": None},
    }
    sample = {"id": 1, "question": "3+4?", "expected": "7", "output": "<think>x</think>7", "score": 1.0}
    samples = {f"samples/{model}/sums.jsonl": as_lines(sample) for model in models}
    return [{"results.json": json.dumps(value).encode(), **samples}]


def _read_results(folder: Path, files: Files) -> dict[str, Any]:
    artifact = Artifact(manifest(), folder)
    results = read_results(artifact)
    samples = read_samples(artifact, results)
    choose_questions(samples, list(samples))
    for kind in ("scores", "comparisons"):
        by_task(results, kind)
    headline(results)
    for stage in ("pretrain", "sft", "rl"):
        stage_sentence(results, stage)
    for task in results["overlap"]:
        overlap_sentence(results, task)
    return results


BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


def _entry(*names: str, figure: str) -> dict[str, Any]:
    texts = {name: {"type": "string"} for name in ("task", "metric", *names)}
    kinds = {**texts, figure: {"type": "number"}, "ci95": BOUNDS}
    return {"type": "object", "properties": kinds, "required": [*kinds]}


RESULTS_SCHEMA = {
    "type": "object",
    "required": ["schema_version", "tasks", "models", "scores", "comparisons", "overlap"],
    "properties": {
        "schema_version": {"const": 1},
        "tasks": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["kind", "metric", "n"],
                "properties": {
                    "kind": {"type": "string"},
                    "metric": {"type": "string"},
                    "n": {"type": "integer", "minimum": 0},
                },
            },
        },
        "models": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["label"],
                "properties": {"label": {"type": "string"}},
            },
        },
        "scores": {"type": "array", "items": _entry("model", figure="value")},
        "comparisons": {"type": "array", "items": _entry("from", "to", figure="difference")},
        "overlap": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["found", "of"],
                "properties": {"found": {"type": "integer", "minimum": 0}, "of": {"type": "integer", "minimum": 0}},
            },
        },
    },
}
"""stages/eval/README.md: results.json."""


def _results_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = json_value(files["results.json"], strict=False)
        require_shape(value, RESULTS_SCHEMA, "results.json")
        tasks, models = value["tasks"], value["models"]
        for entry in (*value["scores"], *value["comparisons"]):
            require(entry["task"] in tasks, "a score of a task that is not listed")
            named = [entry[key] for key in ("model", "from", "to") if key in entry]
            require(all(one in models for one in named), "a score of a model that is not listed")
        require(
            not any("/" in model or model in ("", ".", "..") for model in models), "a model's name that leads elsewhere"
        )
        scored = {entry["task"] for entry in value["scores"]}  # answers of another task are never read
        for name, content in files.items():
            _, model, task = (*name.split("/"), "", "")[:3]
            is_read = "sums" in scored and tasks["sums"]["kind"] == "generate"
            if is_read and task == "sums.jsonl" and model in models:
                for _, line in lines_of(content):
                    row = json_value(line, strict=False)
                    require(isinstance(row, dict) and is_number(row.get("score")), "an answer without a score")

    return fault_of(read)


TARGETS = (
    Target(
        "results",
        "results.json and its answers",
        _results,
        _read_results,
        _results_fault,
        ("sums", "base", "../x"),
        share=1,
    ),
)
