"""`manifest.json`: what an artifact holds, who made it, from what. It is written last: where it is, all is.

    {"schema_version": 2, "name": "super3-sft-model", "version": 2, "type": "ModelArtifact",
     "created_at": "2026-01-31T12:00:00+00:00",
     "fingerprint": "9c1f...",                      what went in: inputs, config and code
     "digest": "77ab...",                           what came out: SHA-256 over `files`
     "files": {"model.safetensors": {"sha256": "5e88...", "bytes": 3145728}},
     "producer": {"stage": "sft", "verb": "train", "stage_version": "0.1.0", "shared_version": "0.1.0",
                  "config_digest": "...", "code_digest": "...", "git": null,
                  "command": "nemotron super3 sft -c tiny", "environment": {"python": "3.11.7"}},
     "parents": [{"reference": "super3-sft-data:v1", "digest": "1b2c...", "role": "data"}],
     "sources": [{"uri": "hf://org/set", "digest": "...", "detail": {"rows": 1000}}],
     "metadata": {"step": 40}, "metrics": {"final_loss": 2.31},
     "segments": [{"began": "...", "from_step": null, "how": {...}, "modules": "...", "machine": {...}}]}

Both directions are strict: an unknown, missing or mistyped key is an error that names the file.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from nemotron_shared.artifacts.names import parse_exact
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, did_you_mean

MANIFEST = "manifest.json"
SCHEMA_VERSION = 2
ArtifactType = Literal[
    "PretrainBlendsArtifact",
    "SFTDataArtifact",
    "SplitJsonlDataArtifact",
    "EvalDataArtifact",
    "ModelArtifact",
    "EvalResultsArtifact",
]
TYPES: tuple[str, ...] = get_args(ArtifactType)
DAMAGED = "the file was edited or damaged; restore it, or delete its folder and make the artifact again"
Record = TypeVar("Record")


@dataclass(frozen=True)
class FileEntry:
    """One file's content: SHA-256 in hex, and its size."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Producer:
    """Which program made the artifact, in which state, on what."""

    stage: str
    verb: str
    stage_version: str
    shared_version: str
    config_digest: str
    code_digest: str
    git: str | None
    command: str
    environment: dict[str, Any]


@dataclass(frozen=True)
class Parent:
    """An artifact of the store that was read: `name:vN`, its digest then, and what it was used as."""

    reference: str
    digest: str
    role: str


@dataclass(frozen=True)
class Source:
    """An input from outside the store."""

    uri: str
    digest: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The typed form of `manifest.json`; see the module's example."""

    name: str
    version: int
    type: ArtifactType
    created_at: str
    fingerprint: str
    digest: str
    files: dict[str, FileEntry]
    producer: Producer
    parents: tuple[Parent, ...]
    sources: tuple[Source, ...]
    metadata: dict[str, Any]
    metrics: dict[str, Any]
    segments: list[Any] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values. JSON has no NaN or infinity: they become null."""
        return _finite(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, value: Any, path: Path) -> "Manifest":
        """Check and type a parsed manifest; `path` is where it came from, for messages."""
        written_as = value.get("schema_version") if isinstance(value, dict) else None
        if isinstance(written_as, int) and written_as != SCHEMA_VERSION:
            raise UserError(
                f"{path}: schema_version is {written_as}, this program reads {SCHEMA_VERSION}",
                "use the nemotron-shared version that wrote it",
            )
        fields = _fields(Manifest, value, path, "")
        files = fields["files"].items()
        fields["files"] = {name: _record(FileEntry, entry, path, f"files.{name}.") for name, entry in files}
        fields["producer"] = _record(Producer, fields["producer"], path, "producer.")
        fields["parents"] = _records(Parent, fields["parents"], path, "parents")
        fields["sources"] = _records(Source, fields["sources"], path, "sources")
        manifest = cls(**fields)
        _check_values(manifest, path)
        return manifest

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Load one `manifest.json`."""
        return cls.from_json(read_json(path), path)


def _check_values(manifest: Manifest, path: Path) -> None:
    if manifest.type not in TYPES:
        remedy = did_you_mean(manifest.type, TYPES, otherwise=f"one of {', '.join(TYPES)}")
        raise UserError(f"{path}: unknown type '{manifest.type}'", remedy)
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{path}: files.{name}: leads out of the artifact", DAMAGED)
    for parent in manifest.parents:
        if parse_exact(parent.reference) is None:
            raise UserError(f"{path}: parents: '{parent.reference}' is not of the form name:v1", DAMAGED)


def _records(kind: type[Record], values: Any, path: Path, where: str) -> tuple[Record, ...]:
    return tuple(_record(kind, value, path, f"{where}[{index}].") for index, value in enumerate(values))


def _record(kind: type[Record], value: Any, path: Path, where: str) -> Record:
    return kind(**_fields(kind, value, path, where))


def _fields(kind: type, value: Any, path: Path, where: str) -> dict[str, Any]:
    """The keys of `kind`, each present and of its type, and no other."""
    if not isinstance(value, dict):
        raise UserError(f"{path}: {where.rstrip('.') or 'the file'}: not a JSON object", DAMAGED)
    hints = get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise UserError(f"{path}: unknown key '{where}{key}'", did_you_mean(key, hints, otherwise=DAMAGED))
    for key, hint in hints.items():
        if key not in value:
            raise UserError(f"{path}: key '{where}{key}' is missing", DAMAGED)
        if not isinstance(value[key], _json_type(hint)):
            raise UserError(f"{path}: key '{where}{key}' has the wrong type", DAMAGED)
    return dict(value)


def _json_type(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return dict
    if isinstance(hint, UnionType):
        return hint
    return {tuple: list | tuple, Literal: str}.get(get_origin(hint), get_origin(hint) or hint)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
