"""An artifact in hand: a manifest, the folder it describes, and whether the two still agree."""

import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nemotron_shared.artifacts.manifest import (
    MANIFEST,
    ArtifactType,
    FileEntry,
    Manifest,
    Parent,
    Producer,
    read_manifest,
)
from nemotron_shared.atomic import TEMPORARY_PREFIX, sync
from nemotron_shared.digest import file_digest, json_digest
from nemotron_shared.errors import NotFound, UserError

# Hashing waits for the disk as much as for the processor, and hashlib lets other threads run meanwhile.
HASHING_THREADS = 8
EXTERNAL_PRODUCER = Producer(
    stage="external",
    verb="",
    stage_version="",
    shared_version="",
    config_digest="",
    code_digest="",
    git=None,
    command="",
    environment={},
)


@dataclass(frozen=True)
class Artifact:
    """A manifest and the folder it describes: a version of a store, or a folder from outside (version 0)."""

    manifest: Manifest
    path: Path

    @classmethod
    def external(
        cls,
        path: Path,
        type: ArtifactType = "ModelArtifact",
        digest: Callable[[Path], str] = file_digest,
    ) -> "Artifact":
        """Take a folder from elsewhere, say a downloaded checkpoint, as it is. Its dot files do not count.

        Its manifest exists in memory only. `digest` hashes a file, or knows that it has not changed since it did.
        """
        path = path.expanduser().resolve()
        if not path.is_dir():
            raise NotFound(f"{path}: no such folder", "give a folder, or an artifact such as super3-sft-model:v2")
        files = file_table(path, hidden=False, digest=digest)
        if not files:
            raise UserError(f"{path}: holds no files", "give the folder that holds the model's or data's files")
        manifest = Manifest(
            name="external-" + re.sub(r"[^a-z0-9._-]", "-", path.name.lower()),
            version=0,
            type=type,
            created_at=utc(path.stat().st_mtime),
            fingerprint=table_digest(files),
            digest=table_digest(files),
            files=files,
            producer=EXTERNAL_PRODUCER,
            parents=(),
            sources=(),
            metadata={},
            metrics={},
        )
        return cls(manifest, path)

    @property
    def is_external(self) -> bool:
        return self.manifest.version == 0

    @property
    def reference(self) -> str:
        """What finds it again: `name:v3`, or the path of an external folder."""
        return str(self.path) if self.is_external else f"{self.manifest.name}:v{self.manifest.version}"

    @property
    def size(self) -> int:
        """Bytes in all files, without the manifest."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    def as_parent(self, role: str) -> Parent:
        """How what is made from this artifact of a store records it. An external one is a source instead."""
        return Parent(self.reference, self.manifest.digest, role)


def seal(directory: Path, *, links: bool, known: Mapping[str, str] | None = None) -> dict[str, FileEntry]:
    """Make a finished folder safe to publish: no left-overs, readable, everything on disk, every file hashed.

    `known` gives digests that were taken when the files were written, by their name in the folder.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder to publish")
    for leftover in directory.rglob(f"{TEMPORARY_PREFIX}*"):
        if leftover.is_file():
            leftover.unlink()
    umask = os.umask(0)  # it can only be read by setting it
    os.umask(umask)

    def admit(path: Path) -> None:
        if path.is_symlink():
            _check_link(path, directory, links)
        else:
            _set_mode(path, 0o644 & ~umask)
            sync(path)

    table = file_table(directory, before=admit, known=known)
    if not table:
        raise UserError(f"{directory}: holds no files to publish")
    for folder, _, _ in os.walk(directory):
        _set_mode(Path(folder), 0o755 & ~umask)
        sync(Path(folder))
    return table


def problems(artifact: Artifact, *, fast: bool = False, digest: Callable[[Path], str] = file_digest) -> list[str]:
    """How the folder differs from the manifest, one line per file.

    `fast` compares sizes and not content. `digest` hashes a file, or knows that it has not changed since it did.
    """
    expected = artifact.manifest.files
    found = contents(artifact.path, hidden=not artifact.is_external)
    lines = [f"{name}: missing" for name in expected if name not in found]
    lines += [f"{name}: not in the manifest" for name in found if name not in expected]
    common = [name for name in expected if name in found]
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        compared = pool.map(lambda name: _difference(found[name], expected[name], fast, digest), common)
        lines += [f"{name}: {difference}" for name, difference in zip(common, compared, strict=True) if difference]
    if table_digest(expected) != artifact.manifest.digest:
        lines.append(f"{MANIFEST}: its digest does not match its own list of files")
    elif not artifact.is_external and read_manifest(artifact.path / MANIFEST) != artifact.manifest.to_bytes():
        lines.append(f"{MANIFEST}: content changed")
    return lines


def table_digest(files: dict[str, FileEntry]) -> str:
    """The identity of an artifact's content: SHA-256 over names, sizes and digests of its files."""
    return json_digest({name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in files.items()})


def file_table(
    root: Path,
    *,
    before: Callable[[Path], None] | None = None,
    hidden: bool = True,
    known: Mapping[str, str] | None = None,
    digest: Callable[[Path], str] = file_digest,
) -> dict[str, FileEntry]:
    """Hash what `contents` finds, unless its digest is known.

    `before` is called with each path, and may refuse it, before any is read.
    """
    found = contents(root, hidden=hidden)
    for path in found.values():
        if not path.is_file():
            raise UserError(f"{path}: not a file, or a link to none", "remove it, or link to files one by one")
        if before:
            before(path)
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        digests = list(pool.map(lambda name: (known or {}).get(name) or digest(found[name]), found))
    return {
        name: FileEntry(taken, path.stat().st_size) for (name, path), taken in zip(found.items(), digests, strict=True)
    }


def contents(root: Path, *, hidden: bool = True) -> dict[str, Path]:
    """Everything below `root` that is not a folder, links included, its own manifest not.

    Keys are relative, with `/`, and sorted. `hidden=False` leaves out what begins with a dot or lies in such
    a folder.
    """
    found = {}
    for folder, folders, files in os.walk(root, onerror=_cannot_list):
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for path in (Path(folder) / name for name in files + linked):
            parts = path.relative_to(root).parts
            if hidden or not any(part.startswith(".") for part in parts):
                found["/".join(parts)] = path
    found.pop(MANIFEST, None)
    return dict(sorted(found.items()))


def utc(seconds: float) -> str:
    """A time since the epoch as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _difference(path: Path, entry: FileEntry, fast: bool, digest: Callable[[Path], str]) -> str | None:
    if not path.is_file():
        return "not a file any more"
    if (size := path.stat().st_size) != entry.bytes:
        return f"{size} bytes, was {entry.bytes}"
    try:
        if not fast and digest(path) != entry.sha256:
            return "content changed"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _set_mode(path: Path, mode: int) -> None:
    """Let colleagues read what is published: safetensors writes its files for the owner alone."""
    try:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
    except PermissionError:
        pass  # a second name of another user's file, whose mode is theirs to choose


def _check_link(path: Path, root: Path, links: bool) -> None:
    if not links:
        raise UserError(f"{path}: a link, and only whole files can be published here", "copy the file")
    inside = path.resolve().is_relative_to(root.resolve())
    if path.readlink().is_absolute() == inside:
        raise UserError(
            f"{path}: this link would break when the folder moves",
            "make links inside the folder relative and links out of it absolute",
        )


def _cannot_list(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be listed: {error.strerror}") from error
