"""Compare the bytes of two artifacts file by file, and report how far the first differing weights are apart."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_shared.artifacts import Artifact
from nemotron_shared.digest import file_digest
from nemotron_shared.runtime.metrics import FILE as METRICS
from nemotron_shared.runtime.metrics import read_metrics

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
        elif not _is_intact(then.path / name, before[name].sha256):
            found.append(Compared(name, "not what the manifest states, and the stored copy is damaged"))
        else:
            found.append(_differing(name, then.path / name, now.path / name))
    return found


def _is_intact(file: Path, sha256: str) -> bool:
    return file.is_file() and file_digest(file) == sha256


def _differing(name: str, before: Path, after: Path) -> Compared:
    if name == METRICS:
        return _metrics(name, before, after)
    if name.endswith(".safetensors"):
        return Compared(name, _tensors(before, after))
    sizes = before.stat().st_size, after.stat().st_size
    return Compared(name, f"{sizes[0]} bytes, now {sizes[1]}" if sizes[0] != sizes[1] else "other bytes")


def _metrics(name: str, before: Path, after: Path) -> Compared:
    """Compare metrics exactly, except for times."""
    note = f"all but {', '.join(sorted(CLOCKS))}"
    rows = [[_without_clocks(entry) for entry in read_metrics(path)] for path in (before, after)]
    for then, now in zip(*rows, strict=False):
        if then != now:
            keys = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
            return Compared(name, f"step {then['step']}: {keys[0]} {then.get(keys[0])} -> {now.get(keys[0])}", note)
    lengths = [len(one) for one in rows]
    return Compared(name, f"{lengths[0]} entries, now {lengths[1]}" if lengths[0] != lengths[1] else None, note)


def _without_clocks(entry: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in entry.items() if key not in CLOCKS}
    return {key: "NaN" if isinstance(value, float) and math.isnan(value) else value for key, value in kept.items()}


def _tensors(before: Path, after: Path) -> str:
    """The first tensors that differ, with the largest difference of each."""
    headers = [_header(path) for path in (before, after)]
    names = [name for name in headers[0] if name != "__metadata__"]
    if {*headers[0]} != {*headers[1]}:
        return f"other tensors: {', '.join(sorted(headers[0].keys() ^ headers[1].keys())[:FIRST_TENSORS])}"
    said, count = [], 0
    for name in names:
        then, now = _values(before, headers[0][name]), _values(after, headers[1][name])
        if then.shape != now.shape or then.tobytes() != now.tobytes():
            count += 1
            if len(said) < FIRST_TENSORS:
                said.append(f"{name} {_distance(then, now)}")
    return f"{count} of {len(names)} tensors: {'; '.join(said)}" if said else "the same tensors in another order"


def _distance(then: np.ndarray, now: np.ndarray) -> str:
    if then.shape != now.shape:
        return f"has the shape {now.shape}, was {then.shape}"
    return f"by up to {np.abs(then.astype(np.float64) - now.astype(np.float64)).max():.3g}"


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)) | {"__metadata__": {"start": 8 + length}}


def _values(path: Path, entry: dict[str, Any]) -> np.ndarray:
    start, end = entry["data_offsets"]
    with path.open("rb") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little") + start)
        content = file.read(end - start)
    if entry["dtype"] == "BF16":  # bfloat16 is the upper half of a float32, which numpy can read
        wide = np.frombuffer(content, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(entry["shape"])
    return np.frombuffer(content, DTYPES.get(entry["dtype"], "u1")).reshape(
        entry["shape"] if entry["dtype"] in DTYPES else -1
    )
