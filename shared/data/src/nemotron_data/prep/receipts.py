"""Finished shards: a folder with a receipt that lists its files.

    shards/000012/{train.bin, train.idx, rejected.jsonl, receipt.json}

The folder appears by one rename, after everything in it is on disk. So a folder with this name is a finished shard, and
the digests tell whether it is still intact.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nemotron_shared.system.atomic import NO_ROOM, sync, temporary_folder
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import UserError

RECEIPT = "receipt.json"
TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Receipt:
    """Work of one worker on one shard.

    Attributes:
        plan: digest of the plan that the shard belongs to.
        counts, rejected, cut, asked, examples: as in `ShardReader`.
        inputs: what was read of each range.
        figures: results of the stage's own work.
        files: name -> {"bytes", "sha256"}.
    """

    shard: int
    plan: str
    counts: Mapping[str, int]
    rejected: Mapping[str, int]
    inputs: list[dict[str, Any]]
    figures: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    examples: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def shard_folder(directory: Path, index: int) -> Path:
    """Path of a finished shard."""
    return directory / f"{index:06d}"


def begin(directory: Path, index: int) -> Path:
    """Make an empty temporary folder for one attempt at a shard."""
    directory.mkdir(parents=True, exist_ok=True)
    return temporary_folder(directory, f"{TEMPORARY}{index:06d}-")


def commit(folder: Path, receipt: Receipt, digests: Mapping[str, str]) -> Receipt:
    """Sync everything to disk, write the receipt and rename the folder; returns the receipt with its files.

    Args:
        digests: SHA-256 by name of files that are on disk already.
    """
    files = {path.name: _sealed(path, digests.get(path.name)) for path in sorted(folder.iterdir())}
    complete = replace(receipt, files=files)
    with (folder / RECEIPT).open("w", encoding="utf-8") as file:
        json.dump(asdict(complete), file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    sync(folder)
    target = shard_folder(folder.parent, receipt.shard)
    shutil.rmtree(target, ignore_errors=True)  # only an invalid one can be here
    folder.rename(target)
    sync(folder.parent)
    return complete


def _sealed(path: Path, digest: str | None) -> dict[str, Any]:
    if digest is None:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        digest = file_digest(path)
    return {"bytes": path.stat().st_size, "sha256": digest}


def verified(directory: Path, index: int, plan: str) -> Receipt | None:
    """Receipt of a finished, intact shard of this plan; None if the shard must be made."""
    folder = shard_folder(directory, index)
    try:
        receipt = Receipt(**json.loads((folder / RECEIPT).read_text(encoding="utf-8")))
        if receipt.plan == plan and all(_intact(folder / name, entry) for name, entry in receipt.files.items()):
            return receipt
    except (OSError, ValueError, TypeError):
        return None
    return None


def _intact(path: Path, entry: Mapping[str, Any]) -> bool:
    return path.stat().st_size == entry["bytes"] and file_digest(path) == entry["sha256"]


def sweep(directory: Path) -> None:
    """Remove the remains of killed attempts; the caller holds the run's lock, so none is in progress."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def as_user_error(error: OSError, folder: Path) -> UserError:
    """User error for a full or read-only disk."""
    if error.errno in NO_ROOM:
        return UserError(
            f"{folder.parent}: cannot be written: {error.strerror}",
            "free space and run the same command again: finished shards are kept",
        )
    return UserError(f"{error.filename or folder}: {error.strerror or error}", "put it right and run again")
