"""Indexes for listing and searching ten thousand manifests without reading them again.

    cache/artifacts.json                   an `Entry` for each manifest, valid while the file is unchanged, and the
                                           content of each artifact's folder, valid while nothing is added or removed
    artifacts/super3-sft-model/index.json  {"1": "9c1f...", "3": null}: the fingerprint each version was published
                                           with; null: removed, its number stays taken

The files always win over an index. An entry is valid for one inode, size, mtime and ctime of its manifest, and for
the code that read it; a published fingerprint that differs from the manifest's is a sign of damage. Both indexes can
be deleted, and may lack entries another process added at the same time: they are rebuilt from the manifests.
"""

import hashlib
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nemotron_shared.artifacts import artifact, manifest
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest, missing, unreadable
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.file_cache import FileCache

INDEX = "index.json"
ENTRIES = Path("cache", "artifacts.json")
VERSION_FOLDER = re.compile(r"v([1-9][0-9]{0,8})")


class Entry(NamedTuple):
    """The part of a manifest that lists and searches need; `parents` are references, `fine_tuning` made the version."""

    type: str
    created_at: str
    fingerprint: str
    files: int
    bytes: int
    parents: list[str]
    fine_tuning: str | None


class Shelf(NamedTuple):
    """A name in a listing: the content of its folder, and its versions, oldest first, each with its entry or its error.

    `problem` is the error if the folder itself cannot be read, such as a link loop.
    """

    name: str
    files: list[str]
    versions: dict[int, Entry | UserError]
    problem: UserError | None = None


class Entries:
    """Entries for a store's manifests, opened and saved by `entries_of`."""

    def __init__(self, home: Path) -> None:
        self._root = f"{home}/artifacts"
        self._cache = FileCache(home / ENTRIES, _reader())

    def of(self, name: str, version: int) -> Entry:
        """The entry of one version.

        Raises:
            FileNotFoundError: no such version.
            UserError: its manifest is missing, unreadable, or describes another version.
        """
        folder = f"{self._root}/{name}/v{version}"
        path = f"{folder}/{MANIFEST}"
        try:
            return Entry(*self._cache.get(path, lambda _: entry_of(read_as(Path(path), name, version))))
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_version(folder):
                raise missing(path) from error
            raise FileNotFoundError(path) from error
        except OSError as error:  # a link loop: this version is damaged, the others can still be listed
            raise unreadable(path, error) from error

    def files_of(self, name: str) -> list[str]:
        """Names in an artifact's folder; empty if it does not exist."""
        try:
            return self._cache.get(f"{self._root}/{name}", files_in)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def forget_others(self) -> None:
        """Drop entries not asked for since this was opened: their files are gone."""
        self._cache.forget_others()

    def save(self) -> None:
        """Write new entries to disk, if possible."""
        self._cache.save()


@contextmanager
def entries_of(home: Path) -> Generator[Entries]:
    """Open the entries of the store at `home`, and save new ones even if the search ends early."""
    entries = Entries(home)
    try:
        yield entries
    finally:
        entries.save()


def listed(home: Path, names: Iterable[str]) -> Iterator[Shelf]:
    """Shelves of the given names that have versions, or whose folder cannot be read.

    Reads only manifests changed since they were last read.
    """
    with entries_of(home) as entries:
        for name in names:
            try:
                shelf = Shelf(name, entries.files_of(name), {})
            except OSError as error:
                yield Shelf(name, [], {}, unreadable(home / "artifacts" / name, error))
                continue
            for version in numbers_in(shelf.files):
                try:
                    shelf.versions[version] = entries.of(name, version)
                except FileNotFoundError:  # an empty folder, or just deleted
                    continue
                except UserError as error:
                    shelf.versions[version] = error
            if shelf.versions:
                yield shelf
        entries.forget_others()


def numbers_in(files: Iterable[str]) -> list[int]:
    """Version numbers among the names of folders, ascending."""
    return sorted(int(match[1]) for match in map(VERSION_FOLDER.fullmatch, files) if match)


def files_in(folder: str) -> list[str]:
    """Names in a folder; empty if it does not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only, for ten thousand versions
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_version(folder: str) -> bool:
    """Whether this folder is a published version: it has a manifest, or files whose manifest is lost.

    A version appears with its manifest in one rename, and disappears in one: a folder with only other files is damaged.
    """
    if os.path.exists(f"{folder}/{MANIFEST}"):  # noqa: PTH110 - Path takes 5 times as long
        return True
    try:
        return bool(os.listdir(folder))  # noqa: PTH208 - see `files_in`
    except OSError:
        return False


def read_published(shelf: Path) -> dict[int, str | None]:
    """Known fingerprint of each version at publishing; `shelf` is the folder with a name's versions."""
    try:
        content = atomic.read_json(shelf / INDEX, most=None)
        return {int(number): known for number, known in content.items()}
    except (UserError, OSError, AttributeError, ValueError):  # it can be rebuilt
        return {}


def record(shelf: Path, learned: Mapping[int, str | None]) -> None:
    """Remember the fingerprints of versions, or None for a number whose version was removed.

    Does nothing if the store is read-only or full.
    """
    known = read_published(shelf)
    if known.items() >= learned.items():
        return
    with suppress(OSError, UserError, ValueError):  # ValueError: an old entry that cannot be encoded
        content = {str(number): fingerprint for number, fingerprint in (known | dict(learned)).items()}
        atomic.write_json(shelf / INDEX, content)


def read_as(path: Path, name: str, version: int) -> Manifest:
    """Read a manifest and check that it describes this version.

    Raises:
        UserError: it cannot be read, or describes another one.
    """
    found = Manifest.read(path)
    if (found.name, found.version) != (name, version):
        raise UserError(
            f"{path}: describes {found.name}:v{found.version}, not {name}:v{version}",
            "move the folder back to where it was",
        )
    return found


def entry_of(found: Manifest) -> Entry:
    """The entry of a manifest."""
    size = sum(file.bytes for file in found.files.values())
    parents = [parent.reference for parent in found.parents]
    by = artifact.fine_tuning_of(found.producer.command)
    return Entry(found.type, found.created_at, found.fingerprint, len(found.files), size, parents, by)


@cache
def _reader() -> str:
    """Digest of the code that makes entries: when it changes, they are rebuilt."""
    return hashlib.sha256(
        b"".join(Path(file).read_bytes() for file in (__file__, artifact.__file__, manifest.__file__))
    ).hexdigest()
