"""Compare the bytes of two artifacts file by file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_shared.artifacts import Artifact
from nemotron_shared.system.digest import file_digest
from nemotron_shared.tracking.metrics import FILE as METRICS
from nemotron_shared.tracking.metrics import read_metrics

CLOCKS = {"seconds", "step_seconds", "tokens_per_second", "memory_gb"}
"""Measurements of the machine, not of the model, which differ on every run."""
FIRST_TENSORS = 5
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}


@dataclass(frozen=True)
class Compared:
    """One file of both: `problem` says how it differs, or None if equal; `note` lists what was not compared."""

    name: str
    problem: str | None = None
    note: str | None = None


def compare(then: Artifact, now: Artifact) -> list[Compared]:
    """Compare all files of both artifacts, by name."""
    before, after = then.manifest.files, now.manifest.files
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            found.append(Compared(name, "not made again"))
        elif name not in before:
            found.append(Compared(name, "was not there"))
        elif before[name].sha256 == after[name].sha256:
            found.append(Compared(name))
        elif not _holds(then.path / name, before[name].sha256):
            found.append(Compared(name, "not what the manifest states, and the stored copy is damaged"))
        elif name == METRICS:
            note = f"all but {', '.join(sorted(CLOCKS))}"
            found.append(Compared(name, _differing_metrics(then.path / name, now.path / name), note))
        elif name.endswith(".safetensors"):
            found.append(Compared(name, _differing_tensors(then.path / name, now.path / name)))
        else:
            sizes = before[name].bytes, after[name].bytes
            found.append(Compared(name, f"{sizes[0]} bytes, now {sizes[1]}" if sizes[0] != sizes[1] else "other bytes"))
    return found


def _is_clock(name: str) -> bool:
    return name in CLOCKS or name.endswith("seconds")  # such as environment/sampling_seconds


def _differing_metrics(before: Path, after: Path) -> str | None:
    """The first difference that is not one of time."""
    rows: list[list[dict[str, Any]]] = []
    for path in (before, after):
        kept = ({key: entry[key] for key in entry if not _is_clock(key)} for entry in read_metrics(path))
        # NaN does not equal itself
        rows.append([{key: "NaN" if value != value else value for key, value in entry.items()} for entry in kept])
    for then, now in zip(*rows, strict=False):
        if then != now:
            key = min(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
            return f"step {then['step']}: {key} {then.get(key)} -> {now.get(key)}"
    lengths = [len(one) for one in rows]
    return f"{lengths[0]} entries, now {lengths[1]}" if lengths[0] != lengths[1] else None


def _differing_tensors(before: Path, after: Path) -> str:
    """The first tensors that differ, with the largest difference of each."""
    old, new = _tensors(before), _tensors(after)
    if old.keys() != new.keys():
        return f"other tensors: {', '.join(sorted(old.keys() ^ new.keys())[:FIRST_TENSORS])}"
    differing = []
    for name in old:
        then, now = _values(before, *old[name]), _values(after, *new[name])
        if then.shape != now.shape:
            differing.append(f"{name} has the shape {now.shape}, was {then.shape}")
        elif then.tobytes() != now.tobytes():
            distance = np.abs(then.astype(np.float64) - now.astype(np.float64)).max()
            differing.append(f"{name} by up to {distance:.3g}")
    if not differing:
        return "the same tensors in another order"
    return f"{len(differing)} of {len(old)} tensors: {'; '.join(differing[:FIRST_TENSORS])}"


def _tensors(path: Path) -> dict[str, tuple[int, dict[str, Any]]]:
    """Offset of the data, and dtype, shape and place of each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return {name: (8 + length, entry) for name, entry in header.items() if name != "__metadata__"}


def _values(path: Path, offset: int, entry: dict[str, Any]) -> np.ndarray:
    start, end = entry["data_offsets"]
    with path.open("rb") as file:
        file.seek(offset + start)
        content = file.read(end - start)
    if entry["dtype"] == "BF16":  # bfloat16 is the upper half of a float32, which numpy can read
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4").reshape(entry["shape"])
    known = entry["dtype"] in DTYPES
    return np.frombuffer(content, DTYPES.get(entry["dtype"], "u1")).reshape(entry["shape"] if known else -1)


def _holds(file: Path, sha256: str) -> bool:
    return file.is_file() and file_digest(file) == sha256
