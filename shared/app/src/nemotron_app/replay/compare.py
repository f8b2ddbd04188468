"""Compare the bytes of two artifacts file by file, and restore files of a damaged one from equal bytes."""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_app.training_log import folder_that_made
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.artifacts.store import STAGING
from nemotron_shared.artifacts.verified import command_that_made, remove_and_make, strays_in
from nemotron_shared.system import atomic
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


def repair(store: Store, artifact: Artifact, now: Artifact) -> list[str]:
    """Replace the damaged files of an artifact of the store by those of `now`, if their digests agree.

    Files that differ on every run, such as times, may still be found in the folder of its run.

    Returns:
        The names of the restored files. The manifest, files that are not listed in it, and obstacles are left alone.
    """
    (store.root / STAGING).mkdir(exist_ok=True)
    waiting = atomic.temporary_folder(store.root / STAGING, f"{artifact.manifest.name}-")
    repaired, run = [], folder_that_made(artifact, store)
    try:
        for number, (name, entry) in enumerate(artifact.manifest.files.items()):
            file, copy = artifact.path / name, waiting / str(number)
            if _obstacle(artifact, name) or _holds(file, entry.sha256):
                continue
            whole = next((one for one in (now.path / name, run / name) if _holds(one, entry.sha256)), None)
            if whole is None:
                continue
            atomic.copy_content(whole, copy)
            if not _holds(copy, entry.sha256):
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copymode(whole, copy)
            atomic.sync(copy)
            copy.replace(file)
            atomic.sync(file.parent)
            repaired.append(name)
    finally:
        shutil.rmtree(waiting, ignore_errors=True)
    return repaired


def what_next(artifact: Artifact, damage: Sequence[str], *, tried: bool) -> str:
    """The remedy for a damaged stored copy; `tried` means that repairing was already attempted."""
    if strays := strays_in(artifact, damage):
        return f"delete what does not belong there: {shlex.join(strays)}"
    if any(line.startswith(f"{MANIFEST}:") for line in damage):
        return remove_and_make(artifact)
    repair = f"nemotron artifacts replay {artifact.reference} --repair"
    obstacles = dict.fromkeys(str(path) for name in artifact.manifest.files if (path := _obstacle(artifact, name)))
    if obstacles:
        move = shlex.join(["mv", *obstacles, "ELSEWHERE"])
        return f"move away the files that took the place of its own: {move}; then: {repair}"
    if not tried:
        return f"put its bytes back: {repair}"
    kept = f"use its files as they are: cp -r {artifact.path} ./kept, then give ./kept"
    return f"make another version: {command_that_made(artifact.manifest)}; or {kept}"


def _obstacle(artifact: Artifact, name: str) -> Path | None:
    """What is in place of an artifact's file and must not be replaced: a folder, or a parent that is not a real
    folder, such as a symlink out of the artifact.
    """
    file = artifact.path / name
    for above in reversed(file.parents[: name.count("/")]):
        if os.path.lexists(above) and (above.is_symlink() or not above.is_dir()):
            return above
    return file if file.is_dir() and not file.is_symlink() else None


def _holds(file: Path, sha256: str) -> bool:
    return file.is_file() and file_digest(file) == sha256
