"""Files of a run: metrics.jsonl, the marks of checkpoints, the segments."""

import hashlib
import json
from pathlib import Path
from typing import Any

from nemotron_app.report.training import facts, panels
from nemotron_prove.input.second import fault_of, is_count, json_value, lines_of, require
from nemotron_prove.input.target import Files, Target
from nemotron_shared.artifacts import FileEntry
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.checkpoints import Layout, Mark, Validation, damage_of
from nemotron_shared.runtime.metrics import RESULT_METRICS, MetricsLog, last_values, read_metrics
from nemotron_shared.runtime.records import Segment, changes, read_segments

METRICS = [
    {"step": step, "loss": 3.9 / step, "lr": 0.003, "tokens": 2048 * step, "seconds": 0.5 * step, "grad_norm": 1.0}
    for step in (1, 2, 3, 4)
] + [{"step": 4, "valid_loss": 1.25}]  # fmt: skip
FIGURES = ("loss", "lr", "tokens", "seconds", "grad_norm", "valid_loss")


def _metrics() -> list[Files]:
    return [{"metrics.jsonl": "".join(json.dumps(entry) + "\n" for entry in METRICS).encode()}]


def _read_metrics(folder: Path, files: Files) -> list[dict[str, Any]]:
    entries = list(read_metrics(folder / "metrics.jsonl"))
    facts(entries)
    panels(entries)
    log = MetricsLog(folder / "metrics.jsonl")
    last_values(log, RESULT_METRICS)
    log.cut_after(2)
    return entries


def _metrics_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        for _, line in lines_of(files.get("metrics.jsonl", b"").rpartition(b"\n")[0]):
            entry = json_value(line, strict=False)
            require(isinstance(entry, dict), "a line that is no object")
            require(is_count(entry.get("step")), "a step that is no count")
            figures = [one for name, one in entry.items() if name in FIGURES]  # an engine may log more
            numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in figures)
            require(numbers, "a figure that is no number")

    return fault_of(read)


STATE = {"checkpoint-30/model.bin": b"weights", "checkpoint-30/optimizer.bin": b"moments"}


def _mark() -> list[Files]:
    table = {
        name.partition("/")[2]: FileEntry(hashlib.sha256(one).hexdigest(), len(one)) for name, one in STATE.items()
    }
    marks = (Mark(30, 1, table, Validation(30, "valid_loss", 1.5)), Mark(30, 2, table))
    return [{**STATE, "checkpoint-30/COMPLETE": mark.text().encode()} for mark in marks]


def _damage(folder: Path, files: Files) -> str | None:
    if damage := damage_of(folder / "checkpoint-30", Layout()):
        raise UserError(damage, "it is set aside, and the one before it is used")
    return None


def _damage_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        mark = json_value(files["checkpoint-30/COMPLETE"])
        require(
            mark["step"] == 30 and is_count(mark["world_size"]) and mark["world_size"] > 0, "a mark of another step"
        )
        body = {key: one for key, one in mark.items() if key != "digest"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        require(mark["digest"] == hashlib.sha256(text.encode()).hexdigest(), "a digest that does not fit")
        for name, entry in mark["files"].items():
            content = files[f"checkpoint-30/{name}"]
            require(entry["bytes"] == len(content), "a file of another size")
            require(entry["sha256"] == hashlib.sha256(content).hexdigest(), "a file of other bytes")

    return fault_of(read)


def _segments() -> list[Files]:
    one = {
        "began": "2026-01-31T12:00:00+00:00",
        "from_step": 0,
        "how": {"train.micro_batch_size": 8},
        "modules": {"stages.sft.train": "5e88"},
        "machine": {"host": "n1", "processes": 1, "cores": 2},
    }
    return [{"segments.json": json.dumps([one, {**one, "from_step": 20}]).encode()}]  # fmt: skip


def _read_segments(folder: Path, files: Files) -> list[Segment]:
    found = read_segments(folder)
    if len(found) > 1:
        changes(found[0], found[-1])
    return found


def _segments_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = json_value(files["segments.json"], strict=False) if "segments.json" in files else []
        require(isinstance(value, list), "no list of segments")
        for one in value:
            require(isinstance(one["began"], str), "a beginning that is no text")
            require(one["from_step"] is None or is_count(one["from_step"]), "a step that is no count")
            require(all(isinstance(one[key], dict) for key in ("how", "modules", "machine")), "a section that is none")

    return fault_of(read)


TARGETS = (
    Target("metrics", "metrics.jsonl", _metrics, _read_metrics, _metrics_fault, ("step", "loss", "seconds"), share=0.6),
    Target("mark", "marks of checkpoints", _mark, _damage, _damage_fault, ("../x", "COMPLETE", "step"), share=1.5),
    Target("segments", "segments.json", _segments, _read_segments, _segments_fault, ("began", "how"), share=2),
)
