"""`manifest.json`: an artifact's files, producer and inputs. Written last: if it exists, the artifact is complete.

    {"schema_version": 2, "name": "super3-sft-model", "version": 2, "type": "ModelArtifact",
     "created_at": "2026-01-31T12:00:00+00:00",
     "fingerprint": "9c1f...",                      over inputs, config and code
     "digest": "77ab...",                           of the result: SHA-256 over `files`
     "files": {"model.safetensors": {"sha256": "5e88...", "bytes": 3145728}},
     "producer": {"stage": "sft", "verb": "train", "stage_version": "0.1.0", "shared_version": "0.1.0",
                  "config_digest": "...", "code_digest": "...", "git": null,
                  "command": "nemotron super3 sft -c tiny", "environment": {"python": "3.11.7"}},
     "parents": [{"reference": "super3-sft-data:v1", "digest": "1b2c...", "role": "data"}],
     "sources": [{"uri": "hf://org/set", "digest": "...", "detail": {"rows": 1000}}],
     "metadata": {"step": 40}, "metrics": {"final_loss": 2.31},
     "segments": [{"began": "...", "from_step": null, "how": {...}, "modules": "...", "machine": {...},
                   "seconds": 41.2}],                  of the last attempt only
     "self_digest": "0d4e..."}                      SHA-256 over all of the above

Reading and writing are strict: an unknown, missing or mistyped key is an error that names the file. A manifest has
exactly one spelling (`Manifest.to_bytes`), so any changed byte is detected.
"""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from nemotron_shared.artifacts.names import WORD, parse_exact
from nemotron_shared.stages import ArtifactType
from nemotron_shared.system.atomic import read_regular
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import UserError, did_you_mean, disk_remedy

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MANIFEST = "manifest.json"
SCHEMA_VERSION: Literal[2] = 2
SELF_DIGEST = "self_digest"
HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
TYPES: tuple[str, ...] = get_args(ArtifactType)
REPLAYABLE = "replayable"
"""Key of a result's metadata that is false where a library that took part in it promises no two runs alike."""
DAMAGED = "the file was edited or damaged; restore it, or delete its folder and make the artifact again"


class Strict:
    """Pydantic settings: no unknown keys, and no conversions such as "1" to 1."""

    __pydantic_config__: ClassVar = {"strict": True, "extra": "forbid"}


class OlderLayout(UserError):
    """The manifest was written by an older version of this program, which recorded less."""


@dataclass(frozen=True)
class FileEntry(Strict):
    """SHA-256 in hex and size of one file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Producer(Strict):
    """The program that made the artifact, its versions and its environment."""

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
class Parent(Strict):
    """An artifact of the store used as an input: `name:vN`, its digest at the time, and its role."""

    reference: str
    digest: str
    role: str


@dataclass(frozen=True)
class Source(Strict):
    """An input from outside the store."""

    uri: str
    digest: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest(Strict):
    """Typed form of `manifest.json`; see the module's example."""

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
    schema_version: Literal[2] = SCHEMA_VERSION
    self_digest: str = field(default="", compare=False, repr=False)  # as read; computed again on writing

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, plus the digest over all of them. NaN and infinity become null, as JSON has neither."""
        values = json.loads(_validator().dump_json(self, exclude={SELF_DIGEST}))
        return values | {SELF_DIGEST: json_digest(values)}

    def to_bytes(self) -> bytes:
        """The exact bytes of `manifest.json` for this manifest."""
        return (json.dumps(self.to_json(), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Load a `manifest.json`."""
        return cls.parse(read_manifest(path), path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> "Manifest":
        """Parse and check the bytes of a `manifest.json`; `path` is where they came from, for messages.

        Does not check that they are the bytes originally written: compare with `to_bytes` for that.
        """
        from pydantic import ValidationError  # here, because it takes 0.1 s to import and many commands do not need it

        try:
            # From JSON text: only there does strict mode accept an object for a dataclass and a list for a tuple.
            manifest = _validator().validate_json(content)
        except ValidationError as error:
            _check_layout(content, path)
            raise _explained(error, path) from error
        # keys that are optional in memory are required in files
        wanted = {"segments": 1, "schema_version": 1, SELF_DIGEST: 1, "detail": len(manifest.sources)}
        for key, times in wanted.items():
            if content.count(f'"{key}"'.encode()) < times:
                raise UserError(f"{path}: key '{key}' is missing", DAMAGED)
        _check_values(manifest, path)
        return manifest


def _check_values(manifest: Manifest, path: Path) -> None:
    """Check what types cannot express: digests, names, sizes, the time."""
    digests = {SELF_DIGEST: manifest.self_digest, "digest": manifest.digest}
    if not WORD.fullmatch(manifest.name) or manifest.version < 1:
        raise UserError(f"{path}: '{manifest.name}:v{manifest.version}' is not an artifact of a store", DAMAGED)
    if not _is_moment(manifest.created_at):
        raise UserError(f"{path}: created_at: '{manifest.created_at}' is not a time with its zone", DAMAGED)
    digests |= {f"files.{name}.sha256": entry.sha256 for name, entry in manifest.files.items()}
    digests |= {f"parents[{index}].digest": parent.digest for index, parent in enumerate(manifest.parents)}
    for key, digest in digests.items():
        if not HEX_DIGEST.fullmatch(digest):
            raise UserError(f"{path}: key '{key}' is not a SHA-256 digest of 64 hexadecimal digits", DAMAGED)
    for name, entry in manifest.files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{path}: files.{name}: leads out of the artifact", DAMAGED)
        if name in ("", ".") or "\0" in name or str(PurePosixPath(name)) != name or entry.bytes < 0:
            raise UserError(f"{path}: files.{name}: not the name and size of a file", DAMAGED)
    for parent in manifest.parents:
        if parse_exact(parent.reference) is None:
            raise UserError(f"{path}: parents: '{parent.reference}' is not of the form name:v1", DAMAGED)


def _is_moment(text: str) -> bool:
    """Whether this is an ISO 8601 time with a time zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def missing(path: Path | str) -> UserError:
    """The error for a missing manifest."""
    return UserError(f"{path} is missing", "restore the file, or delete its folder and make the artifact again")


def read_manifest(path: Path) -> bytes:
    """The bytes of a `manifest.json`."""
    try:
        return read_regular(path)
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: OSError) -> UserError:
    """The error for a manifest that exists and cannot be read."""
    remedy = disk_remedy(error) or "ask its owner, or check the disk"
    return UserError(f"{path}: cannot be read: {error.strerror}", remedy)


def _check_layout(content: bytes, path: Path) -> None:
    """Report the actual reason a manifest cannot be parsed: not a JSON object, or another layout."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # bad UTF-8 or syntax, numbers of thousands of digits; too deep
        raise UserError(f"{path}: not valid JSON: {error}", DAMAGED) from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: the file: not a JSON object", DAMAGED)
    written_as = value.get("schema_version")
    if not isinstance(written_as, int) or written_as == SCHEMA_VERSION:
        return
    both = f"schema_version is {written_as}, this program reads {SCHEMA_VERSION}"
    if written_as > SCHEMA_VERSION:
        raise UserError(f"{path}: {both}", "use the nemotron-shared version that wrote it")
    raise OlderLayout(
        f"{path}: an older layout: {both}",
        f"make the artifact again, or use its files as they are: cp -r {path.parent} ./kept, then give ./kept",
    )


@cache
def _validator() -> "TypeAdapter[Manifest]":
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


def _explained(error: "ValidationError", path: Path) -> UserError:
    """The first problem as an error; unknown keys go first, because a misspelt key is also a missing one."""
    problems = error.errors(include_url=False)
    problem = next((found for found in problems if found["type"] == "unexpected_keyword_argument"), problems[0])
    # ("parents", 0, "role") as `parents[0].role`
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    match problem["type"]:
        case "unexpected_keyword_argument":
            holders = (Manifest, FileEntry, Producer, Parent, Source)
            known = {field.name for holder in holders for field in dataclasses.fields(holder)}
            near = did_you_mean(str(problem["loc"][-1]), known, otherwise=DAMAGED)
            return UserError(f"{path}: unknown key '{key}'", near)
        case "missing":
            return UserError(f"{path}: key '{key}' is missing", DAMAGED)
        case "literal_error" if key == "type":
            wrong = str(problem["input"])
            near = did_you_mean(wrong, TYPES, otherwise=f"one of {', '.join(TYPES)}")
            return UserError(f"{path}: unknown {key} '{wrong}'", near)
        case "dataclass_type":
            return UserError(f"{path}: {key}: not a JSON object", DAMAGED)
    return UserError(f"{path}: key '{key}' has the wrong type", DAMAGED)
