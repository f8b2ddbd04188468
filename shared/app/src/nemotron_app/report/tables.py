"""Tables about data, time and environment, from the manifests."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemotron_app.report import wording
from nemotron_app.report.collect import STEPS, Collected
from nemotron_app.report.training import facts

SPLITS = ("train", "valid", "test")
COLUMNS = ("kind", "documents", "conversations", "rows", "packed_rows", "tokens", "trained_tokens", "fill")


@dataclass(frozen=True)
class Table:
    """Headings and rows of text; the first column names the row."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Data:
    """A data artifact: its splits or tasks, other counts, and rows that were refused, by reason."""

    step: str
    reference: str | None
    absent: str | None
    table: Table | None = None
    counts: Sequence[tuple[str, str]] = ()
    rejected: Sequence[tuple[str, str]] = ()
    rejected_total: str = "0"


def data(collected: Collected) -> list[Data]:
    """Every data artifact of the pipeline, in order."""
    return [_data(collected, kind) for kind in STEPS if kind.endswith("-data")]


def steps_table(collected: Collected) -> Table:
    """When each artifact was made, and how long that took."""
    rows = []
    for kind, artifact in collected.artifacts.items():
        step = collected.pipeline_step(kind)
        loop = facts(collected.metrics.get(kind.removesuffix("-model"), [])).seconds
        took = wording.duration(step.get("seconds")) + (" (reused)" if step.get("reused") else "")
        finished = wording.moment(artifact.manifest.created_at)
        row = [STEPS[kind], artifact.reference, finished, size(artifact.size), wording.duration(loop)]
        rows.append([*row, took] if collected.pipeline else row)
    headings = ["step", "made", "finished", "on disk", "training loop"]
    return Table([*headings, "whole step, this time"] if collected.pipeline else headings, rows)


def environment(collected: Collected) -> list[tuple[str, str]]:
    """Versions and platform; where the steps differ, every value with the steps that had it."""
    by_name: dict[str, dict[str, list[str]]] = {}
    for kind, artifact in collected.artifacts.items():
        for name, value in artifact.manifest.producer.environment.items():
            by_name.setdefault(name, {}).setdefault(str(value), []).append(STEPS[kind])
    return [(name, _differing(values)) for name, values in by_name.items()]


def code_table(collected: Collected) -> Table:
    """Which code and which config made each artifact."""
    rows = []
    for kind, artifact in collected.artifacts.items():
        made = artifact.manifest.producer
        digests = [made.code_digest[:12], made.config_digest[:12], artifact.manifest.digest[:12]]
        rows.append([STEPS[kind], f"{made.stage} {made.stage_version}", _commit(made.git), *digests])
    return Table(["step", "stage", "git commit", "code", "config", "content"], rows)


def commands(collected: Collected) -> list[str]:
    """The command of each step, in order, each once."""
    return list(dict.fromkeys(found.manifest.producer.command for found in collected.artifacts.values()))


def rejected_rows(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Refused rows by reason, of a data artifact."""
    return metadata.get("counts", {}).get("rejected", {})


def amount(metadata: Mapping[str, Any]) -> str:
    """How much data an artifact holds: tokens where they were counted, rows elsewhere."""
    groups = [*metadata.get("splits", {}).values(), *metadata.get("tasks", {}).values()]
    for unit in ("tokens", "rows"):
        known = [group[unit] for group in groups if unit in group]
        if known:
            return f"{wording.short_count(sum(known))} {unit}"
    return ""


def size(number: float) -> str:
    """`3.1 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _data(collected: Collected, kind: str) -> Data:
    if kind not in collected.artifacts:
        return Data(STEPS[kind], None, collected.absent[kind])
    artifact = collected.artifacts[kind]
    metadata = artifact.manifest.metadata
    rejected = rejected_rows(metadata)
    return Data(
        step=STEPS[kind],
        reference=artifact.reference,
        absent=None,
        table=_split_table(metadata),
        counts=[*_numbers(metadata), *_numbers(metadata.get("counts", {}))],
        rejected=[(reason, wording.count(number)) for reason, number in rejected.items()],
        rejected_total=wording.count(sum(rejected.values())),
    )


def _split_table(metadata: Mapping[str, Any]) -> Table | None:
    """One row for each split or task, one column for whatever is known of any of them."""
    first, groups = ("split", metadata["splits"]) if "splits" in metadata else ("task", metadata.get("tasks", {}))
    columns = _sorted({column for group in groups.values() for column in group}, COLUMNS)
    if not columns:
        return None
    names = _sorted(groups, SPLITS)
    rows = [[name, *(_cell(column, groups[name].get(column)) for column in columns)] for name in names]
    return Table([first, *(column.replace("_", " ") for column in columns)], rows)


def _sorted(names: Iterable[str], first: Sequence[str]) -> list[str]:
    """The known names in the order of `first`, then the others by name: a JSON object keeps no order."""
    return sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if column == "fill":
        return f"{value:.1%}"
    return wording.figure(value) if isinstance(value, int | float) else str(value)


def _numbers(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), wording.figure(value))
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _differing(values: Mapping[str, Sequence[str]]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return "; ".join(f"{value} ({', '.join(steps)})" for value, steps in values.items())


def _commit(git: str | None) -> str:
    return "not recorded" if git is None else git[:12] + (", changed" if git.endswith("-dirty") else "")


def settings(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings of the evaluation, lists and nulls as JSON."""
    return [
        (name.replace("_", " "), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in results["settings"].items()
    ]
