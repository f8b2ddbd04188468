"""The report of a synthetic pipeline: what the page and the table say is what the artifacts hold."""

import io
import json
import math
import random
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from nemotron_shared.artifacts import Artifact, Parent, Producer, Source, Store
from nemotron_shared.errors import UserError
from nemotron_shared.report import build_report
from nemotron_shared.report.charts import line_chart, moving_mean, strip_axis, ticks
from nemotron_shared.report.charts import Series
from nemotron_shared.report.collect import choose
from nemotron_shared.report.command import main
from nemotron_shared.report.samples import choose_questions
from nemotron_shared.report.training import facts

FAMILY = "super3"
HOSTILE = '<script>alert("x")</script> & </td></table> {{ 7 * 7 }}'
QUESTIONS = 400
RIGHT = {"random": 0.0, "base": 0.02, "sft": 0.41, "rl": 0.93}
LABELS = {"random": "random weights", "base": "base", "sft": "after SFT", "rl": "after RL"}
VOID = {"meta", "br", "link", "img", "hr", "input"}
SVG_EMPTY = {"line", "circle", "path", "rect"}


def publish(store: Store, kind: str, type: str, files: dict[str, str], parents: dict[str, Artifact], **more) -> Artifact:
    folder = store.home / "work"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    stage = kind.partition("-")[0]
    verb = "data_prep" if kind.endswith("data") else "train"
    environment = {"python": "3.11.7", "platform": "Linux-6.1-x86_64", "torch": "2.13.0"}
    command = f"python -m stages.{stage}.{verb} -c tiny run.family={FAMILY}"
    git = "0123456789abcdef0123456789abcdef01234567-dirty"
    producer = Producer(stage, verb, "0.1.0", "0.1.0", "c" * 64, "d" * 64, git, command, environment)
    return store.publish(
        folder,
        name=f"{FAMILY}-{kind}",
        type=type,
        fingerprint=kind,
        producer=producer,
        parents=[artifact.as_parent(role) for role, artifact in parents.items()],
        **more,
    )


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def loss_log(steps: int, start: float, end: float, rate: float) -> list[dict]:
    rng, rows, clock = random.Random(steps), [], 0.0
    for step in range(1, steps + 1):
        loss = end + (start - end) * math.exp(-step / (steps / 6)) + rng.gauss(0, 0.05)
        clock += 4096 / rate * (0.9 + 0.2 * rng.random())
        tokens, seconds = step * 4096, round(clock, 3)
        common = {"tokens": tokens, "tokens_per_second": round(tokens / seconds, 1), "seconds": seconds}
        norm = 1.1 + rng.random() * 0.4
        rows.append({"step": step, "loss": loss, "lr": 3e-3 * min(1, step / 20, (steps - step + 1) / 100), "grad_norm": norm, **common})
        if step % 50 == 0:
            clock += 0.4
            rows.append({"step": step, "valid_loss": loss + 0.04, **common, "seconds": round(clock, 3)})
    return rows


def reward_log(steps: int) -> list[dict]:
    rng, rows = random.Random(7), []
    for step in range(1, steps + 1):
        reward = min(1.0, 0.35 + 0.6 * step / steps + rng.gauss(0, 0.06))
        rows.append({
            "step": step, "reward": reward, "reward_std": 0.4, "zero_advantage_fraction": rng.random() * 0.6,
            "completion_length": 12 + 16 * step / steps + rng.random(), "rewards/exact_match/mean": reward - 0.02,
            "rewards/format/mean": min(1, reward + 0.1), "lr": 5e-4, "grad_norm": 0.4, "seconds": step * 0.55,
        })  # fmt: skip
        if step % 50 == 0:
            rows.append({"step": step, "valid_reward": reward, "seconds": step * 0.55 + 0.2})
    return rows


def answers() -> dict[str, list[dict]]:
    rng = random.Random(3)
    terms = [[rng.randint(1, 9) for _ in range(4)] for _ in range(QUESTIONS)]
    found: dict[str, list[dict]] = {}
    for model, share in RIGHT.items():
        right = set(rng.sample(range(QUESTIONS), round(share * QUESTIONS)))
        found[model] = []
        for index, numbers in enumerate(terms):
            expected = str(sum(numbers))
            text = expected if index in right else str(sum(numbers) + rng.choice([-2, -1, 1, 3]))
            if model == "rl":
                a, b, c, d = numbers
                text = f"<think>{a}+{b}={a + b}\n{a + b}+{c}={a + b + c}\n{a + b + c}+{d}={text}</think>{text}"
            question = f"What is {'+'.join(map(str, numbers))}?"
            row = {"id": index, "question": question, "expected": expected, "output": text, "score": float(index in right)}
            found[model].append(row)
    found["base"][0]["output"] = HOSTILE
    return found


def results(models: dict[str, Artifact | None]) -> dict:
    def scores(task: str, metric: str, values: dict[str, float], half: float, n: int) -> list[dict]:
        return [
            {"model": model, "task": task, "metric": metric, "value": value, "stderr": half / 2, "n": n,
             "ci95": [max(0, value - half), value + half if metric == "bits_per_byte" else min(1, value + half)]}
            for model, value in values.items()
        ]  # fmt: skip

    prose = {"random": 8.031, "base": 1.207, "sft": 1.315, "rl": 1.319}
    facts_ = {"random": 0.21, "base": 0.415, "sft": 0.62, "rl": 0.61}
    all_scores = [
        *scores("sums", "exact_match", RIGHT, 0.03, QUESTIONS),
        *scores("facts", "acc", facts_, 0.065, 200),
        *scores("prose", "bits_per_byte", prose, 0.04, 100),
    ]
    comparisons = []
    for before, after in zip(all_scores, all_scores[1:], strict=False):
        if before["task"] == after["task"]:
            difference = after["value"] - before["value"]
            comparisons.append({
                "task": after["task"], "metric": after["metric"], "from": before["model"], "to": after["model"],
                "difference": difference, "ci95": [difference - 0.04, difference + 0.04], "n": after["n"],
            })  # fmt: skip
    named = {name: {"reference": found and found.reference, "label": LABELS[name]} for name, found in models.items()}
    return {
        "schema_version": 1,
        "tasks": {
            "facts": {"kind": "choice", "metric": "acc", "n": 200, "n_unique": 196, "lower_is_better": False},
            "prose": {"kind": "text", "metric": "bits_per_byte", "n": 100, "n_unique": 100, "lower_is_better": True},
            "sums": {"kind": "generate", "metric": "exact_match", "n": QUESTIONS, "n_unique": QUESTIONS},
        },
        "models": named,
        "scores": all_scores,
        "comparisons": comparisons,
        "overlap": {"sums": {"checked_against": ["super3-pretrain-data:v1", "super3-sft-data:v1"], "found": 0, "of": 400}},
        "settings": {"tasks": None, "limit": None, "greedy": True, "engine": "lm_eval"},
    }  # fmt: skip


def build_pipeline(store: Store, *, evaluation: bool = True) -> dict[str, Artifact]:
    """All eight artifacts, small, with figures like those of a real tiny run."""
    made: dict[str, Artifact] = {}
    source = Source("world://documents?seed=1234", "f" * 64, {"rows": 6000})
    splits = {"train": {"documents": 5702, "tokens": 1180231}, "valid": {"documents": 298, "tokens": 61233}}
    metadata = {"total_tokens": 1241464, "splits": splits, "vocab_size": 512, "counts": {"rows": 6000, "rejected": {}}}
    made["pretrain-data"] = publish(
        store, "pretrain-data", "PretrainBlendsArtifact", {"blend.json": "{}"}, {}, sources=[source], metadata=metadata
    )
    model = {"step": 300, "parameters": 1234567}
    made["pretrain-model"] = publish(
        store, "pretrain-model", "ModelArtifact", {"metrics.jsonl": lines(loss_log(300, 6.2, 0.9, 21010))},
        {"data": made["pretrain-data"]}, metadata=model,
    )  # fmt: skip
    train = {"conversations": 5698, "packed_rows": 640, "tokens": 160321, "trained_tokens": 51233, "fill": 0.97852}
    rejected = {"unknown role": 3, HOSTILE: 1}
    made["sft-data"] = publish(
        store, "sft-data", "SFTDataArtifact", {"train.parquet": "x"}, {}, sources=[source],
        metadata={"pack_size": 256, "splits": {"train": train}, "counts": {"rows": 6004, "rejected": rejected}},
    )  # fmt: skip
    made["sft-model"] = publish(
        store, "sft-model", "ModelArtifact", {"metrics.jsonl": lines(loss_log(200, 2.2, 0.35, 18000))},
        {"data": made["sft-data"], "model": made["pretrain-model"]}, metadata=model,
    )  # fmt: skip
    made["rl-data"] = publish(
        store, "rl-data", "SplitJsonlDataArtifact", {"train.jsonl": "{}"}, {}, sources=[source],
        metadata={"splits": {"train": {"rows": 2850}, "valid": {"rows": 150}, "test": {"rows": 0}}, "counts": {"rows": 3000, "rejected": {}}},
    )  # fmt: skip
    made["rl-model"] = publish(
        store, "rl-model", "ModelArtifact", {"metrics.jsonl": lines(reward_log(100))},
        {"data": made["rl-data"], "model": made["sft-model"]}, metadata=model,
    )  # fmt: skip
    if evaluation:
        add_evaluation(store, made)
    return made


def add_evaluation(store: Store, made: dict[str, Artifact]) -> None:
    tasks = {"sums": {"kind": "generate", "rows": 400}, "facts": {"kind": "choice", "rows": 200}}
    made["eval-data"] = publish(
        store, "eval-data", "EvalDataArtifact", {"tasks.json": "{}"}, {}, metadata={"tasks": tasks, "counts": {"rejected": {}}}
    )  # fmt: skip
    models = {"random": None, "base": made["pretrain-model"], "sft": made["sft-model"], "rl": made["rl-model"]}
    files = {f"samples/{model}/sums.jsonl": lines(rows) for model, rows in answers().items()}
    files["results.json"] = json.dumps(results(models), sort_keys=True)
    parents = {"data": made["eval-data"], "model": made["rl-model"], "base": made["pretrain-model"], "sft": made["sft-model"]}
    made["eval-results"] = publish(store, "eval-results", "EvalResultsArtifact", files, parents)
