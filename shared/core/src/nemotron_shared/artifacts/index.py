"""What a list or a search asks of ten thousand manifests, without reading them again.

    cache/artifacts.json                   an `Entry` for each manifest, as long as nothing has touched the file, and
                                           what lies in each artifact's folder, as long as nothing comes or goes
    artifacts/super3-sft-model/index.json  {"1": "9c1f...", "3": null}: what each version was published as;
                                           null: removed, its number stays taken

Neither is believed against the files. An entry holds for one inode, size, mtime and ctime of its manifest, and for
the code that read it; a fingerprint that was published and is not the manifest's any more is a sign of damage. Both
may be deleted, and may lack what another process learned at the same time: they are made anew from the manifests.
"""

import hashlib
import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nemotron_shared import atomic
from nemotron_shared.artifacts import fine_tunings, manifest
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest, missing, unreadable
from nemotron_shared.errors import UserError
from nemotron_shared.file_cache import FileCache

INDEX = "index.json"
ENTRIES = Path("cache", "artifacts.json")
VERSION_FOLDER = re.compile(r"v([1-9][0-9]{0,8})")


class Entry(NamedTuple):
    """What lists and searches need of a manifest; `parents` are references, `fine_tuning` is which one made it."""

    type: str
    created_at: str
    fingerprint: str
    files: int
    bytes: int
    parents: list[str]
    fine_tuning: str | None


class Shelf(NamedTuple):
    """A name in a list of all: what lies in its folder, and its versions, oldest first, or why one cannot be read.

    `problem` says why nobody can tell what lies there, as behind a link that leads to itself.
    """

    name: str
    files: list[str]
    versions: dict[int, Entry | UserError]
    problem: UserError | None = None


class Entries:
    """The entries of a store's manifests; `entries_of` opens and keeps them."""

    def __init__(self, home: Path) -> None:
        self._root = f"{home}/artifacts"
        self._cache = FileCache(home / ENTRIES, _reader())

    def of(self, name: str, version: int) -> Entry:
        """One version's.

        Raises:
            FileNotFoundError: there is no such version.
            UserError: its manifest is missing, cannot be read, or is of another version.
        """
        folder = f"{self._root}/{name}/v{version}"
        path = f"{folder}/{MANIFEST}"
        try:
            return Entry(*self._cache.get(path, lambda _: entry_of(read_as(Path(path), name, version))))
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_version(folder):
                raise missing(path) from error
            raise FileNotFoundError(path) from error
        except OSError as error:  # a link that leads to itself: this version is damaged, and the others are listed
            raise unreadable(path, error) from error

    def files_of(self, name: str) -> list[str]:
        """What lies in an artifact's folder; nothing where there is none."""
        try:
            return self._cache.get(f"{self._root}/{name}", files_in)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def forget_others(self) -> None:
        """Forget what nobody has asked for since this was opened: it is gone."""
        self._cache.forget_others()

    def save(self) -> None:
        """Keep what was learned, where that can be written."""
        self._cache.save()


@contextmanager
def entries_of(home: Path) -> Generator[Entries]:
    """The entries of the store at `home`; what is learned is kept, also where the search ends early."""
    entries = Entries(home)
    try:
        yield entries
    finally:
        entries.save()


def listed(home: Path, names: Iterable[str]) -> Iterator[Shelf]:
    """Those of the names in the store at `home` that have versions, or whose folder cannot be read.

    Only manifests that were touched since they were last read are read.
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
                except FileNotFoundError:  # an empty folder, or gone meanwhile
                    continue
                except UserError as error:
                    shelf.versions[version] = error
            if shelf.versions:
                yield shelf
        entries.forget_others()


def numbers_in(files: Iterable[str]) -> list[int]:
    """The numbers of the folders that may hold versions, lowest first."""
    return sorted(int(match[1]) for match in map(VERSION_FOLDER.fullmatch, files) if match)


def files_in(folder: str) -> list[str]:
    """Names of what lies in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone, for ten thousand versions
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_version(folder: str) -> bool:
    """Whether a version was published as this folder: it has its manifest, or files whose manifest is lost.

    It came here with its manifest, by one rename, and goes by one: a folder with anything else in it is damaged.
    """
    if os.path.exists(f"{folder}/{MANIFEST}"):  # noqa: PTH110 - Path takes 5 times as long
        return True
    try:
        return bool(os.listdir(folder))  # noqa: PTH208 - see `files_in`
    except OSError:
        return False


def read_published(shelf: Path) -> dict[int, str | None]:
    """What each version was published as, as far as it is known; `shelf` is the folder of a name's versions."""
    try:
        content = atomic.read_json(shelf / INDEX, most=None)
        return {int(number): known for number, known in content.items()}
    except (UserError, OSError, AttributeError, ValueError):  # it can be made again
        return {}


def record(shelf: Path, learned: Mapping[int, str | None]) -> None:
    """Remember the fingerprints of versions, or (None) that a number was used and is gone.

    A store that is only readable, or full, does without.
    """
    known = read_published(shelf)
    if known.items() >= learned.items():
        return
    with suppress(OSError, UserError, ValueError):  # the last: an old entry that no text could hold
        content = {str(number): fingerprint for number, fingerprint in (known | dict(learned)).items()}
        atomic.write_json(shelf / INDEX, content)


def read_as(path: Path, name: str, version: int) -> Manifest:
    """A manifest that must describe this version.

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
    by = fine_tunings.fine_tuning_of(found.producer.command)
    return Entry(found.type, found.created_at, found.fingerprint, len(found.files), size, parents, by)


@cache
def _reader() -> str:
    """The code that makes an entry: after a change of it, entries are made anew."""
    return hashlib.sha256(
        b"".join(Path(file).read_bytes() for file in (__file__, fine_tunings.__file__, manifest.__file__))
    ).hexdigest()
