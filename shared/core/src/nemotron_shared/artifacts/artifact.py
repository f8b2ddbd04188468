"""An artifact in hand: a manifest, the folder it describes, and whether the two still agree."""

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from nemotron_shared.digest import file_digest, in_threads, json_digest
from nemotron_shared.errors import NotFound, UserError

NOBODY = Producer("external", "", "", "", "", "", None, "", {})
STRAY = ": not in the manifest"
NO_ARTIFACT = "that folder holds no artifact: give one of model or data files, or NAME[:VERSION] such as sft:v2"


@dataclass(frozen=True)
class Artifact:
    """A manifest and the folder it describes: a version of a store, or a folder from outside (version 0).

    `trusted` says that whoever typed the command lets the Python files of a model run.
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
        """Take a folder from elsewhere, say a downloaded checkpoint, as it is. Its dot files do not count.

        Its manifest exists in memory only. `digest` hashes a file, or knows that it has not changed since it did.
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
        """What finds it again: `name:v3`, or the path of an external folder."""
        return str(self.path) if self.is_external else f"{self.manifest.name}:v{self.manifest.version}"

    @property
    def size(self) -> int:
        """Bytes in all files, without the manifest."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    def as_parent(self, role: str) -> Parent:
        """How what is made from this artifact of a store records it. An external one is a source instead."""
        return Parent(self.reference, self.manifest.digest, role)


def folder_at(path: Path) -> Path:
    """The folder that somebody names.

    Raises:
        NotFound: there is none, or no system could have one of that name.
    """
    try:
        path = path.expanduser().resolve()
        if path.is_dir():
            return path
    except (ValueError, RuntimeError):  # a name with a zero byte; an unknown user's home, links in a circle
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    raise NotFound(f"{path}: no such folder", "give a folder, or an artifact such as super3-sft-model:v2")


def is_folder(text: str) -> bool:
    """Whether a folder has that path."""
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # no system could have one of that name
        return False


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
    found = contents(directory)
    if not found:
        raise UserError(f"{directory}: holds no files to publish")
    for path in filter(Path.is_symlink, found.values()):
        if not path.is_file():
            continue  # refused below, together with devices and the like
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
        # Colleagues read what is published, and safetensors writes its files for the owner alone. The second name of
        # another user's file keeps the mode that is theirs to choose.
        mode = (0o777 if path.is_dir() else 0o666) & ~umask
        with suppress(PermissionError):
            before = stat.S_IMODE(path.stat().st_mode)
            if before & 0o777 != mode:
                path.chmod(before & stat.S_ISGID | mode)  # a shared folder hands its group on
        sync(path)
    return file_table(directory, known=known)


def problems(artifact: Artifact, *, fast: bool = False, digest: Callable[[Path], str] = file_digest) -> list[str]:
    """How the folder differs from the manifest, one line per file.

    `fast` compares sizes and not content. `digest` hashes a file, or knows that it has not changed since it did.
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
    """How the manifest differs from what was published; None where it is the same."""
    if table_digest(artifact.manifest.files) != artifact.manifest.digest:
        return f"{MANIFEST}: its digest does not match its own list of files"
    if not artifact.is_external and read_manifest(artifact.path / MANIFEST) != artifact.manifest.to_bytes():
        return f"{MANIFEST}: content changed"
    return None


def table_digest(files: dict[str, FileEntry]) -> str:
    """The identity of an artifact's content: SHA-256 over names, sizes and digests of its files."""
    return json_digest({name: {"sha256": entry.sha256, "bytes": entry.bytes} for name, entry in files.items()})


def file_table(
    root: Path,
    *,
    hidden: bool = True,
    known: Mapping[str, str] | None = None,
    digest: Callable[[Path], str] = file_digest,
    remedy: str = "remove it, or link to files one by one",
) -> dict[str, FileEntry]:
    """Hash what `contents` finds, unless its digest is known.

    Args:
        remedy: what to do about something that is no file.

    Raises:
        UserError: there is such a thing, or a file that cannot be read.
    """
    found = contents(root, hidden=hidden)
    for path in found.values():
        if not path.is_file():
            raise UserError(f"{path}: not a file, or a link to none", remedy)

    def entry(name: str) -> FileEntry:
        return FileEntry((known or {}).get(name) or digest(found[name]), found[name].stat().st_size)

    return dict(zip(found, in_threads(entry, found), strict=True))


def contents(root: Path, *, hidden: bool = True) -> dict[str, Path]:
    """Everything below `root` that is not a folder, links included, its own manifest not.

    Keys are relative, with `/`, and sorted. `hidden=False` leaves out what begins with a dot or lies in such
    a folder.
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
    """A time since the epoch as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
