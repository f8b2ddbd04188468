"""Resolve a path or name on the command line to a prepared set: its kind and its files.

super3-sft-data:latest   .nemotron/artifacts/super3-sft-data/v1   out/blend.json   out/train/web/shard_000000.bin
out/train.parquet        out/val.jsonl
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemotron_app.inspect.splits import DocumentSplit, LineSplit, PackedSplit, Split, blend_splits
from nemotron_shared.artifacts.artifact import Artifact, problems
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.artifacts.store import Store
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError, did_you_mean

Kind = Literal["documents", "packs", "lines"]
LENGTHS: dict[Kind, tuple[str, str]] = {
    "documents": ("Document length", "tokens"),
    "packs": ("Sequence length", "tokens"),
    "lines": ("Question length", "characters"),
}
"""What the length of a row counts, and its unit."""
SPLITS = ("train", "valid", "test")
BLEND, STATS, REJECTED, TOKENIZER = "blend.json", "stats.json", "rejected.jsonl", "tokenizer"
OTHER_NAMES = {"val": "valid", "validation": "valid"}
ACCEPTED = "give an artifact, its folder, a blend.json, a .bin/.idx pair, a packed .parquet or a .jsonl file"


@dataclass(frozen=True)
class PreparedSet:
    """A prepared set.

    Attributes:
        folder: holds its stats, tokenizer and refused rows, if any.
        is_whole: the whole folder with all of its splits, not a single file.
        differences: how the files differ from the artifact's manifest.
    """

    title: str
    path: Path
    kind: Kind
    splits: Sequence[Split]
    folder: Path
    tokenizer: Path | None
    pack_size: int | None
    stats: Mapping[str, Any]
    is_whole: bool
    differences: Sequence[str]


def find_set(target: str, store: Store, family: str, tokenizer: Path | None = None) -> PreparedSet:
    """Find a prepared set.

    Args:
        tokenizer: a tokenizer folder to decode with, instead of the one stored with the data.

    Raises:
        UserError: not found, or not a prepared set.
    """
    path = Path(target).expanduser()
    if path.suffix in {".bin", ".idx"} and path.is_file():
        path = path.with_suffix("")
    elif not path.exists() and not path.with_name(path.name + ".idx").is_file():
        path = _path_in_store(target, path, store, family)
    is_whole = path.is_dir()
    # the set's folder: the nearest parent with a tokenizer or stats, at most three levels up
    near = (above for above in list(path.parents)[:3] if (above / TOKENIZER).is_dir() or (above / STATS).is_file())
    folder = path if is_whole else next(near, path.parent)
    # an unrelated manifest.json does not make the folder an artifact
    is_artifact = is_whole and {"fingerprint", "producer"} <= _object(folder / MANIFEST).keys()
    artifact = Artifact(Manifest.read(folder / MANIFEST), folder) if is_artifact else None
    kind, splits = _splits_of_folder(folder, artifact) if is_whole else _splits_of_file(path, folder)
    if not any(split.examples for split in splits):
        raise UserError(f"{path}: holds no rows", ACCEPTED)
    stats = _object(folder / STATS)
    pack_size = stats.get("pack_size") if kind == "packs" else None
    beside = folder / TOKENIZER if (folder / TOKENIZER / "tokenizer.json").is_file() else None
    return PreparedSet(
        title=artifact.reference if artifact else path.resolve().name if is_whole else str(path),
        path=path,
        kind=kind,
        splits=splits,
        folder=folder,
        tokenizer=tokenizer.expanduser() if tokenizer else beside,
        pack_size=pack_size if isinstance(pack_size, int) else None,
        stats=stats,
        is_whole=is_whole,
        differences=problems(artifact, fast=True) if artifact else (),
    )


def _path_in_store(target: str, path: Path, store: Store, family: str) -> Path:
    looks_like_a_path = is_path(target) or path.suffix in {".bin", ".idx", ".parquet", ".jsonl", ".json"}
    try:
        if not looks_like_a_path:
            return store.resolve(target, family=family).path
    except UserError:
        if "/" not in target or not path.parent.is_dir():
            raise
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    near = did_you_mean(missing.name, [entry.name for entry in missing.parent.iterdir()], ACCEPTED)
    raise UserError(f"{path}: no such file or folder", near)


def _splits_of_folder(folder: Path, artifact: Artifact | None) -> tuple[Kind, Sequence[Split]]:
    if (folder / BLEND).is_file():
        return "documents", blend_splits(folder / BLEND)
    packed = [PackedSplit(name, path) for name in SPLITS if (path := folder / f"{name}.parquet").is_file()]
    if packed:
        return "packs", packed
    lines = [path for path in folder.glob("*.jsonl") if path.name != REJECTED]
    if lines and not (artifact and artifact.manifest.type == "ModelArtifact"):
        lines.sort(key=lambda path: ((*SPLITS, _split_name(path)).index(_split_name(path)), path.name))
        return "lines", [LineSplit(_split_name(path), path) for path in lines]
    versions = sorted(path.name for path in folder.glob("v[0-9]*") if (path / MANIFEST).is_file())
    if versions:
        raise UserError(f"{folder}: holds versions of an artifact", f"give one: {folder / versions[-1]}")
    what = f"{artifact.reference} is a {artifact.manifest.type}" if artifact else f"{folder}: holds no prepared data"
    raise UserError(what, "a prepared set has a blend.json, train.parquet or train.jsonl")


def _splits_of_file(path: Path, folder: Path) -> tuple[Kind, Sequence[Split]]:
    if not path.is_file():  # the prefix of a .bin/.idx pair
        first = path.relative_to(folder).parts[0]
        return "documents", [DocumentSplit(first if first in SPLITS else path.name, [(None, path)], folder)]
    if path.suffix == ".json":
        return "documents", blend_splits(path)
    if path.suffix == ".parquet":
        return "packs", [PackedSplit(_split_name(path), path)]
    if path.suffix == ".jsonl":
        return "lines", [LineSplit(_split_name(path), path)]
    raise UserError(f"{path}: not a prepared set", ACCEPTED)


def _split_name(path: Path) -> str:
    return OTHER_NAMES.get(path.stem, path.stem)


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


# Rows refused by data preparation, counted by reason, with a few examples of each.
#
# {"file": "chats.jsonl", "line": 17, "reason": "unknown role", "detail": "", "snippet": "{\"messages\": ..."}

EXAMPLES = 3


@dataclass
class Reason:
    """A reason for refusing rows, their number, and the first of them as (file:line, detail, start of the row)."""

    reason: str
    count: int = 0
    examples: list[tuple[str, str, str]] = field(default_factory=list)


def read_refused(path: Path) -> list[Reason] | None:
    """Reasons, most frequent first; None if the file does not exist.

    Raises:
        UserError: a line does not have the format that data preparation writes.
    """
    if not path.is_file():
        return None
    found: dict[str, Reason] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                reason, place = row["reason"], f"{row['file']}:{row['line']}"
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"{path}:{number}: not a refused row: {error}", "prepare the data again") from error
            entry = found.setdefault(str(reason), Reason(str(reason)))
            entry.count += 1
            if len(entry.examples) < EXAMPLES:
                entry.examples.append((place, str(row.get("detail", "")), str(row.get("snippet", ""))))
    return sorted(found.values(), key=lambda reason: (-reason.count, reason.reason))
