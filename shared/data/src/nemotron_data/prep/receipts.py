"""A finished shard: its folder, and the receipt in it that says what the folder must hold.

    shards/000012/{train.bin, train.idx, rejected.jsonl, receipt.json}

The folder appears by one rename, after everything in it is on disk. There is no state in between: a folder with this
name is a finished shard, and its digests tell whether it still is.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nemotron_shared.atomic import NO_ROOM, sync, temporary_folder
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError

RECEIPT = "receipt.json"
TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Receipt:
    """What one worker did with one shard.

    Attributes:
        plan: digest of the plan that the shard belongs to.
        counts, rejected, cut, asked, examples: as in `ShardReader`.
        inputs: for each range what was read of it.
        figures: what the stage's own work reports.
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
    """Where a finished shard lies."""
    return directory / f"{index:06d}"


def begin(directory: Path, index: int) -> Path:
    """An empty temporary folder for one attempt at a shard."""
    directory.mkdir(parents=True, exist_ok=True)
    return temporary_folder(directory, f"{TEMPORARY}{index:06d}-")


def commit(folder: Path, receipt: Receipt, digests: Mapping[str, str]) -> Receipt:
    """Put everything on disk, write the receipt and give the folder its name; returns the receipt with its files.

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
    shutil.rmtree(target, ignore_errors=True)  # only one that did not verify can be here
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
    """The receipt of a shard that is finished, belongs to this plan and is unharmed; None: it has to be made."""
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
    """Remove what killed attempts left; the caller holds the run's lock, so nobody is working on them."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def as_user_error(error: OSError, folder: Path) -> UserError:
    """What a full or read-only disk means to the user."""
    if error.errno in NO_ROOM:
        return UserError(
            f"{folder.parent}: cannot be written: {error.strerror}",
            "free space and run the same command again: finished shards are kept",
        )
    return UserError(f"{error.filename or folder}: {error.strerror or error}", "put it right and run again")
