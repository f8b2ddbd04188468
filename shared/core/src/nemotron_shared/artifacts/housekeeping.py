"""Make room in a store: remove a version, or all that nobody is likely to want again.

    used_by(store)             what else was made from each version, and which unfinished runs read it
    remove(store, name, 3)     a version that nothing else was made from
    plan_cleanup(store, 1)     the versions and leftovers that a cleanup would remove; `clean` removes them

A version disappears by one rename, so that it is there as a whole or not at all, and then its files go.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared import atomic
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest, OlderLayout, read_manifest
from nemotron_shared.artifacts.names import Reference, parse_exact
from nemotron_shared.artifacts.store import STAGING, STALE_SECONDS, Store, last_change
from nemotron_shared.artifacts.verified import KnownDigests
from nemotron_shared.errors import UserError

INPUTS = "inputs.json"
"""In the folder of a run that has not published: the artifacts it reads, which a cleanup must leave alone."""


@dataclass(frozen=True)
class Cleanup:
    """What a cleanup would remove: versions, and files or folders that killed processes left behind."""

    versions: list[Reference]
    leftovers: list[Path]

    def size(self, store: Store) -> int:
        """Bytes that it would give back."""
        return sum(tree_size(path) for path in [*(store.folder(found) for found in self.versions), *self.leftovers])


def used_by(store: Store, *, without: Reference | None = None) -> dict[Reference, list[str]]:
    """For each version what needs it: the artifacts that were made from it, and runs that have not published yet.

    Args:
        without: an artifact that does not count, because it is about to go.

    Raises:
        UserError: a manifest is so damaged that nobody can tell what the artifact was made from.
    """
    users: dict[Reference, list[str]] = {}
    for name, versions in store.shelves().items():
        for version in versions:
            child = Reference(name, version)
            for parent in _parents(store, child) if child != without else ():
                users.setdefault(parent, []).append(str(child))
    for folder, parent in _inputs_of_runs(store):
        users.setdefault(parent, []).append(f"the unfinished run {folder.name}")
    return users


def remove(store: Store, reference: Reference) -> list[str]:
    """Remove one version, and give the aliases that went with it.

    Raises:
        UserError: something else was made from it, or a run is reading it.
    """
    users = used_by(store, without=reference).get(reference, [])
    if users:
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        raise UserError(
            f"{reference} is needed by {', '.join(users[:3])}{more}",
            f"remove those first; see: nemotron artifacts lineage {users[0]}"
            if parse_exact(users[0])
            else f"let the run finish, or remove it: nemotron runs rm {users[0].split()[-1]}",
        )
    return _remove(store, reference)


def plan_cleanup(store: Store, keep: int) -> Cleanup:
    """All versions but the newest `keep` of each name, `latest`, those with an alias, and what any of them needs."""
    users = used_by(store)
    shelves = store.shelves()
    everything = [Reference(name, version) for name, versions in shelves.items() for version in versions]
    kept = {parent for parent, needed_by in users.items() if any(parse_exact(user) is None for user in needed_by)}
    for name, versions in shelves.items():
        numbers = {*versions[-keep:], store.latest_of(name, versions), *store.aliases(name).values()}
        kept |= {Reference(name, number) for number in numbers}
    # An older layout may hold what no program here can make again: a person decides.
    kept |= {found for found in everything if _is_older_layout(store, found)}
    waiting = list(kept)
    while waiting:
        for parent in _parents(store, waiting.pop()):
            if parent not in kept:
                kept.add(parent)
                waiting.append(parent)
    doomed = [reference for reference in everything if reference not in kept]
    return Cleanup(_children_first(doomed, users), list(_leftovers(store)))


def clean(store: Store, cleanup: Cleanup) -> None:
    """Carry out what `plan_cleanup` found, but for versions that have come into use since."""
    users, doomed = used_by(store), set(map(str, cleanup.versions))
    for reference in cleanup.versions:
        if doomed.issuperset(users.get(reference, [])):
            _remove(store, reference)
        else:
            doomed.discard(str(reference))
    for path in cleanup.leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def tree_size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    total = 0
    for file in [path, *path.rglob("*")]:
        with suppress(OSError):  # gone meanwhile
            total += file.lstat().st_size if not file.is_dir() else 0
    return total


def _remove(store: Store, reference: Reference) -> list[str]:
    folder, version = store.folder(reference), reference.version
    assert isinstance(version, int)
    graveyard = store.root / STAGING
    graveyard.mkdir(exist_ok=True)
    grave = graveyard / f"removed-{reference.name}-v{version}-{time.time_ns()}"
    try:
        folder.rename(grave)
    except OSError as error:
        raise UserError(f"{folder}: cannot be removed: {error.strerror}", "ask its owner to remove it") from error
    store.index(reference.name).record(version, None)
    dropped = store.drop_aliases(reference.name, version)
    KnownDigests.of_version(reference.name, version, store.home).path.unlink(missing_ok=True)
    shutil.rmtree(grave, ignore_errors=True)  # what is left of it, a later cleanup sweeps
    return dropped


def _parents(store: Store, reference: Reference) -> list[Reference]:
    """What a version was made from, as far back as the first layout of manifests, which recorded it alike."""
    path = store.folder(reference) / MANIFEST
    if not path.is_file():
        return []  # a parent that is gone
    content = read_manifest(path)
    try:
        recorded = [parent.reference for parent in Manifest.parse(content, path).parents]
    except OlderLayout:
        recorded = [parent["reference"] for parent in json.loads(content).get("parents", [])]
    except UserError as error:
        raise UserError(
            f"{error.message}; so nobody can tell what {reference} was made from",
            f"restore the file, or remove the artifact: nemotron artifacts rm {reference}",
        ) from error
    return [parent for parent in map(parse_exact, recorded) if parent]


def _is_older_layout(store: Store, reference: Reference) -> bool:
    try:
        Manifest.read(store.folder(reference) / MANIFEST)
    except OlderLayout:
        return True
    return False


def _inputs_of_runs(store: Store) -> Iterator[tuple[Path, Reference]]:
    """What runs read that have not published: the record goes with that."""
    for file in sorted((store.home / "runs").glob(f"*/{INPUTS}")):
        folder = file.parent
        with suppress(UserError):  # half a record of a run that was killed as it began
            for reference in atomic.read_json(file):
                if parent := parse_exact(reference):
                    yield folder, parent


def _leftovers(store: Store) -> Iterator[Path]:
    """Temporary files, and copies under way, that nothing has touched for a day."""
    folders = [store.home, store.home / "cache" / "verified", *(store.home / "runs").glob("*"), *store.root.glob("*")]
    candidates = [path for folder in folders for path in folder.glob(f"{atomic.TEMPORARY_PREFIX}*")]
    candidates += (store.root / STAGING).glob("*")
    for path in candidates:
        if last_change(path) < time.time() - STALE_SECONDS or path.name.startswith("removed-"):
            yield path


def _children_first(doomed: list[Reference], users: dict[Reference, list[str]]) -> list[Reference]:
    """So that a cleanup cut short leaves nothing without its parents."""
    order: dict[Reference, None] = {}

    def add(reference: Reference) -> None:
        if reference in order:
            return
        for user in users.get(reference, []):
            if child := parse_exact(user):
                add(child)
        order[reference] = None

    for reference in doomed:
        add(reference)
    chosen = set(doomed)
    return [reference for reference in order if reference in chosen]
