"""Compare the bytes of two artifacts file by file, and report how far the first differing weights are apart."""

import json
import math
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_app.replay.past import IMPORT
from nemotron_app.training_log import folder_that_made
from nemotron_shared import atomic
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.claim import STAGING
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.artifacts.verified import command_that_made, damage_of, in_short, remove_and_make, strays_in
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError
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


# Restore files of a damaged artifact in place, using only bytes whose digest matches the published one.


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
            if in_the_way(artifact, name) or _holds(file, entry.sha256):
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


def in_the_way(artifact: Artifact, name: str) -> Path | None:
    """The obstacle in place of an artifact's file that must not be replaced: a folder, or a parent that is not a real
    folder, such as a symlink out of the artifact.
    """
    file = artifact.path / name
    above = file.parents[: name.count("/")]
    found = next(
        (one for one in reversed(above) if os.path.lexists(one) and (one.is_symlink() or not one.is_dir())), None
    )
    return found or (file if file.is_dir() and not file.is_symlink() else None)


def _holds(file: Path, sha256: str) -> bool:
    return file.is_file() and file_digest(file) == sha256


# Damage to the stored inputs of a replay.


def require_intact(store: Store, made: Artifact, inputs: Iterable[Artifact]) -> None:
    """Check the inputs that a replay would read from the store.

    Raises:
        UserError: one is damaged.
    """
    for one in inputs:
        damage = damage_of(one, store.home)
        if not damage:
            continue
        remedy = f"restore {one.path} from a copy"
        if one.manifest.producer.verb != IMPORT:
            remedy += f", or make {one.reference} anew too: nemotron artifacts replay {made.reference} --lineage"
        raise UserError(
            f"{made.reference} cannot be replayed from {one.reference}, which is damaged: {in_short(one, damage)}",
            remedy,
        )


def what_next(artifact: Artifact, damage: Sequence[str], *, tried: bool) -> str:
    """The remedy for a damaged stored copy; `tried` means that repairing was already attempted."""
    if strays := strays_in(artifact, damage):
        return f"delete what does not belong there: {shlex.join(strays)}"
    if any(line.startswith(f"{MANIFEST}:") for line in damage):
        return remove_and_make(artifact)
    repair = f"nemotron artifacts replay {artifact.reference} --repair"
    places = {str(path): None for path in map(partial(in_the_way, artifact), artifact.manifest.files) if path}
    if places:
        return (
            f"move away what lies in the place of its files: {shlex.join(['mv', *places, 'ELSEWHERE'])}; then: {repair}"
        )
    if not tried:
        return f"put its bytes back: {repair}"
    kept = f"use its files as they are: cp -r {artifact.path} ./kept, then give ./kept"
    return f"make another version: {command_that_made(artifact.manifest)}; or {kept}"
