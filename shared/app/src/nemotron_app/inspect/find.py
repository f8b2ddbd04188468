"""What a path or a name on the command line means: which kind of prepared set, and where its parts lie.

super3-sft-data:latest   .nemotron/artifacts/super3-sft-data/v1   out/blend.json   out/train/web/shard_000000.bin
out/train.parquet        out/val.jsonl
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemotron_app.inspect.documents import DocumentSplit, blend_splits
from nemotron_app.inspect.examples import Split
from nemotron_app.inspect.lines import LineSplit
from nemotron_app.inspect.packs import PackedSplit, is_packed
from nemotron_shared.artifacts.artifact import Artifact, problems
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.artifacts.store import Store
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, did_you_mean

Kind = Literal["documents", "packs", "lines"]
SPLITS = ("train", "valid", "test")
BLEND, STATS, REJECTED, TOKENIZER = "blend.json", "stats.json", "rejected.jsonl", "tokenizer"
SPLIT_NAMES = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
NOT_ROWS = {REJECTED}
ACCEPTED = "give an artifact, its folder, a blend.json, a .bin/.idx pair, a packed .parquet or a .jsonl file"


@dataclass(frozen=True)
class Located:
    """A prepared set. `folder` holds its stats, tokenizer and refused rows where it has such."""

    title: str
    path: Path
    kind: Kind
    splits: Sequence[Split]
    folder: Path
    tokenizer: Path | None
    pack_size: int | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    """A whole folder, whose splits should all be there; not one file of it."""
    differences: Sequence[str] = ()
    """How the files differ from the artifact's manifest."""


def locate(target: str, store: Store, family: str, tokenizer: Path | None = None) -> Located:
    """Find a prepared set.

    Args:
        tokenizer: a tokenizer folder to decode with instead of the one beside the data.

    Raises:
        UserError: nothing is there, or it is not a prepared set.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        return _folder(path, tokenizer)
    if path.is_file():
        return _file(path, tokenizer)
    if path.with_name(path.name + ".idx").is_file():
        return _pair(path, tokenizer)
    if is_path(target) or path.suffix in {".bin", ".idx", ".parquet", ".jsonl", ".json"}:
        raise _no_such_path(path)
    try:
        return _folder(store.resolve(target, family=family).path, tokenizer)
    except UserError as error:
        if "/" in target and path.parent.is_dir():
            raise _no_such_path(path) from error
        raise


def _no_such_path(path: Path) -> UserError:
    parent = path.parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    near = did_you_mean(path.name, [entry.name for entry in parent.iterdir()], ACCEPTED)
    return UserError(f"{path}: no such file or folder", near)


def _folder(folder: Path, tokenizer: Path | None) -> Located:
    stats = _object(folder / STATS)
    pack_size = stats.get("pack_size") if isinstance(stats.get("pack_size"), int) else None
    artifact = _artifact(folder)
    kind, splits = _splits(folder, pack_size, artifact)
    return Located(
        title=artifact.reference if artifact else folder.resolve().name,
        path=folder,
        kind=kind,
        splits=splits,
        folder=folder,
        tokenizer=_tokenizer(folder, tokenizer),
        pack_size=pack_size,
        stats=stats,
        whole=True,
        differences=problems(artifact, fast=True) if artifact else (),
    )


def _splits(folder: Path, pack_size: int | None, artifact: Artifact | None) -> tuple[Kind, Sequence[Split]]:
    if (folder / BLEND).is_file():
        return "documents", blend_splits(folder / BLEND)
    packed = [path for name in SPLITS if (path := folder / f"{name}.parquet").is_file()]
    if packed:
        return "packs", [PackedSplit(path.stem, path, pack_size) for path in packed if _checked(path)]
    lines = [path for path in sorted(folder.glob("*.jsonl")) if path.name not in NOT_ROWS]
    if lines and not (artifact and artifact.manifest.type == "ModelArtifact"):
        order = sorted(lines, key=lambda path: _rank(path.stem))
        return "lines", [LineSplit(SPLIT_NAMES.get(path.stem, path.stem), path) for path in order]
    versions = sorted(path.name for path in folder.glob("v[0-9]*") if (path / MANIFEST).is_file())
    if versions:
        raise UserError(f"{folder}: holds versions of an artifact", f"give one: {folder / versions[-1]}")
    what = f"{artifact.reference} is a {artifact.manifest.type}" if artifact else f"{folder}: holds no prepared data"
    raise UserError(what, "a prepared set has a blend.json, train.parquet or train.jsonl")


def _rank(stem: str) -> tuple[int, str]:
    name = SPLIT_NAMES.get(stem, stem)
    return (SPLITS.index(name) if name in SPLITS else len(SPLITS), name)


def _file(path: Path, tokenizer: Path | None) -> Located:
    if path.suffix in {".bin", ".idx"}:
        return _pair(path.with_suffix(""), tokenizer)
    folder = _home_of(path)
    stats = _object(folder / STATS)
    if path.suffix == ".json":
        return Located(str(path), path, "documents", blend_splits(path), folder, _tokenizer(folder, tokenizer))
    name = SPLIT_NAMES.get(path.stem, path.stem)
    if path.suffix == ".parquet" and _checked(path):
        size = stats.get("pack_size") if isinstance(stats.get("pack_size"), int) else None
        split = PackedSplit(name, path, size)
        return Located(str(path), path, "packs", [split], folder, _tokenizer(folder, tokenizer), size, stats)
    if path.suffix == ".jsonl":
        return Located(str(path), path, "lines", [LineSplit(name, path)], folder, _tokenizer(folder, tokenizer))
    raise UserError(f"{path}: not a prepared set", ACCEPTED)


def _pair(prefix: Path, tokenizer: Path | None) -> Located:
    folder = _home_of(prefix)
    inside = prefix.relative_to(folder).parts
    name = inside[0] if inside[0] in SPLITS else prefix.name
    split = DocumentSplit(name, [(None, prefix)], folder)
    stats = _object(folder / STATS)
    return Located(
        str(prefix), prefix, "documents", [split], folder, _tokenizer(folder, tokenizer), stats=stats
    )  # fmt: skip


def _checked(path: Path) -> bool:
    if not is_packed(path):
        raise UserError(
            f"{path}: not packed data: it lacks input_ids, loss_mask or seq_start_id",
            "inspect shows what data preparation has made; this may be what goes into it",
        )
    return True


def _home_of(path: Path) -> Path:
    """The folder of the set that a file belongs to: the nearest with a tokenizer, at most three levels up."""
    for folder in list(path.parents)[:3]:
        if (folder / TOKENIZER).is_dir() or (folder / STATS).is_file():
            return folder
    return path.parent


def _tokenizer(folder: Path, given: Path | None) -> Path | None:
    if given is not None:
        return given
    return folder / TOKENIZER if (folder / TOKENIZER / "tokenizer.json").is_file() else None


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _artifact(folder: Path) -> Artifact | None:
    """The artifact that a folder is; None for a folder whose manifest.json is of another kind, or that has none."""
    path = folder / MANIFEST
    if not path.is_file() or not {"fingerprint", "producer"} <= _object(path).keys():
        return None
    return Artifact(Manifest.read(path), folder)
