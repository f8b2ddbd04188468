"""An artifact: a manifest, the folder it describes, and checks that the two agree."""

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from nemotron_shared.artifacts.manifest import (
    MANIFEST,
    ArtifactType,
    FileEntry,
    Manifest,
    Parent,
    Producer,
    read_manifest,
)
from nemotron_shared.system.atomic import TEMPORARY_PREFIX, sync
from nemotron_shared.system.digest import file_digest, in_threads, json_digest
from nemotron_shared.system.errors import NotFound, UserError

NOBODY = Producer("external", "", "", "", "", "", None, "", {})
STRAY = ": not in the manifest"
NO_ARTIFACT = "that folder holds no artifact: give one of model or data files, or NAME[:VERSION] such as sft:v2"


@dataclass(frozen=True)
class Artifact:
    """A manifest and its folder: a version in a store, or an external folder (version 0).

    `trusted` means the user allowed the model's Python files to run.
    """

    manifest: Manifest
    path: Path
    trusted: bool = False

    @classmethod
    def external(
        cls,
        path: Path,
        type: ArtifactType = "ModelArtifact",
        digest: Callable[[Path], str] = file_digest,
    ) -> "Artifact":
        """Wrap an external folder, such as a downloaded checkpoint, as it is. Dot files are ignored.

        Its manifest exists in memory only. `digest` hashes a file, or returns a cached hash if the file is unchanged.
        """
        path = folder_at(path)
        files = file_table(path, hidden=False, digest=digest, remedy=NO_ARTIFACT)
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
            producer=NOBODY,
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
        """How to refer to it: `name:v3`, or an external folder's path."""
        return str(self.path) if self.is_external else f"{self.manifest.name}:v{self.manifest.version}"

    @property
    def size(self) -> int:
        """Total bytes of all files, without the manifest."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    def as_parent(self, role: str) -> Parent:
        """The parent entry for artifacts made from this one. An external folder is recorded as a source instead."""
        return Parent(self.reference, self.manifest.digest, role)


def folder_at(path: Path) -> Path:
    """Resolve a folder's path.

    Raises:
        NotFound: no such folder, or not a valid path.
    """
    try:
        path = path.expanduser().resolve()
        if path.is_dir():
            return path
    except (ValueError, RuntimeError):  # a zero byte in the name; an unknown user's home, or a link loop
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    raise NotFound(f"{path}: no such folder", "give a folder, or an artifact such as super3-sft-model:v2")


def is_folder(text: str) -> bool:
    """Whether `text` is the path of a folder."""
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # not a valid path
        return False


def seal(directory: Path, *, links: bool, known: Mapping[str, str] | None = None) -> dict[str, FileEntry]:
    """Prepare a finished folder for publishing: remove leftovers, make it readable, sync it to disk, hash every file.

    `known` gives digests taken while the files were written, by name within the folder.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder to publish")
    for leftover in directory.rglob(f"{TEMPORARY_PREFIX}*"):
        if leftover.is_file():
            leftover.unlink()
    umask = os.umask(0)  # the only way to read it is to set it
    os.umask(umask)
    found = contents(directory)
    if not found:
        raise UserError(f"{directory}: holds no files to publish")
    for path in filter(Path.is_symlink, found.values()):
        if not path.is_file():
            continue  # refused below, like devices
        if not links:
            raise UserError(f"{path}: a link, and only whole files can be published here", "copy the file")
        inside = path.resolve().is_relative_to(directory.resolve())
        if path.readlink().is_absolute() == inside:
            raise UserError(
                f"{path}: this link would break when the folder moves",
                "make links inside the folder relative and links out of it absolute",
            )
    for path in [*found.values(), *(Path(folder) for folder, _, _ in os.walk(directory))]:
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            continue
        # Colleagues read published files, and safetensors makes its files private. A hard link to another user's
        # file keeps that user's mode.
        mode = (0o777 if path.is_dir() else 0o666) & ~umask
        with suppress(PermissionError):
            before = stat.S_IMODE(path.stat().st_mode)
            if before & 0o777 != mode:
                path.chmod(before & stat.S_ISGID | mode)  # keep setgid: a shared folder passes its group on
        sync(path)
    return file_table(directory, known=known)


def problems(artifact: Artifact, *, fast: bool = False, digest: Callable[[Path], str] = file_digest) -> list[str]:
    """Differences between folder and manifest, one line per file.

    `fast` compares sizes only. `digest` hashes a file, or returns a cached hash if the file has not changed.
    """
    expected = artifact.manifest.files
    found = contents(artifact.path, hidden=not artifact.is_external)
    absent = [name for name in expected if name not in found]
    lines = [f"{name}: {'a folder' if (artifact.path / name).is_dir() else 'missing'}" for name in absent]
    lines += [f"{name}{STRAY}" for name in found if name not in expected]

    def difference(name: str) -> str | None:
        path, entry = found[name], expected[name]
        if not path.is_file():
            return f"{name}: not a file any more"
        if (size := path.stat().st_size) != entry.bytes:
            return f"{name}: {size} bytes, was {entry.bytes}"
        try:
            return None if fast or digest(path) == entry.sha256 else f"{name}: content changed"
        except OSError as error:
            return f"{name}: cannot be read: {error.strerror}"

    lines += filter(None, in_threads(difference, [name for name in expected if name in found]))
    changed = manifest_change(artifact)
    return lines + ([changed] if changed else [])


def manifest_change(artifact: Artifact) -> str | None:
    """How the manifest differs from the published one; None if it does not."""
    if table_digest(artifact.manifest.files) != artifact.manifest.digest:
        return f"{MANIFEST}: its digest does not match its own list of files"
    if not artifact.is_external and read_manifest(artifact.path / MANIFEST) != artifact.manifest.to_bytes():
        return f"{MANIFEST}: content changed"
    return None


def table_digest(files: dict[str, FileEntry]) -> str:
    """Identity of an artifact's content: SHA-256 over its files' names, sizes and digests."""
    return json_digest({name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in files.items()})


def file_table(
    root: Path,
    *,
    hidden: bool = True,
    known: Mapping[str, str] | None = None,
    digest: Callable[[Path], str] = file_digest,
    remedy: str = "remove it, or link to files one by one",
) -> dict[str, FileEntry]:
    """Hash the files found by `contents`, unless their digest is known.

    Args:
        remedy: what to do about anything that is not a file.

    Raises:
        UserError: something is not a file, or cannot be read.
    """
    found = contents(root, hidden=hidden)
    for path in found.values():
        if not path.is_file():
            raise UserError(f"{path}: not a file, or a link to none", remedy)

    def entry(name: str) -> FileEntry:
        return FileEntry((known or {}).get(name) or digest(found[name]), found[name].stat().st_size)

    return dict(zip(found, in_threads(entry, found), strict=True))


def contents(root: Path, *, hidden: bool = True) -> dict[str, Path]:
    """Everything below `root` except folders and the manifest; links are included.

    Keys are relative paths with `/`, sorted. `hidden=False` leaves out dot files and the content of dot folders.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed: {error.strerror}") from error

    found = {}
    for folder, folders, files in os.walk(root, onerror=refuse):
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for path in (Path(folder) / name for name in files + linked):
            parts = path.relative_to(root).parts
            if hidden or not any(part.startswith(".") for part in parts):
                found["/".join(parts)] = path
    found.pop(MANIFEST, None)
    return dict(sorted(found.items()))


def utc(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, without fractions."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


FOLDER = "finetune"
"""Folder in the store with the configs of fine-tunings."""
CONFIG = re.compile(rf"\b{FOLDER}/([^/]+)/(?:data|train-v\d+)\.yaml")

KeyT = TypeVar("KeyT")


def fine_tuning_of(command: str) -> str | None:
    """The fine-tuning whose config a command uses.

    >>> fine_tuning_of("python -m stages.sft.train -c .nemotron/finetune/chats-4eb45ac9/train-v2.yaml")
    'chats-4eb45ac9'
    """
    found = CONFIG.search(command)
    return found[1] if found else None


def origin(version: KeyT, own: Mapping[KeyT, str], parents: Mapping[KeyT, Sequence[KeyT]]) -> frozenset[str]:
    """The fine-tuning that made a version; for any other version, the fine-tunings it derives from.

    Args:
        own: the fine-tuning of each version made by one.
    """
    found, seen, waiting = set(), set(), [version]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in own:
            found.add(own[one])
        else:
            waiting += parents.get(one, ())
    return frozenset(found)
