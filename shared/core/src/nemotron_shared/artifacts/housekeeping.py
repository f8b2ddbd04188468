"""Free space in a store: remove a version, or all unneeded ones.

    remove(store, reference)   remove a version that nothing was made from and no unfinished run reads
    plan_cleanup(store, 1)     the versions and leftovers a cleanup would remove; `clean` removes them

A version disappears with a single rename, so it is there as a whole or not at all; then its files are deleted.
"""

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeGuard

from nemotron_shared.artifacts.artifact import origin
from nemotron_shared.artifacts.index import record
from nemotron_shared.artifacts.manifest import MANIFEST, OlderLayout, read_manifest
from nemotron_shared.artifacts.names import Reference, parse_exact
from nemotron_shared.artifacts.starting import kept_inputs, removals
from nemotron_shared.artifacts.store import STAGING, STALE_SECONDS, Store, last_change
from nemotron_shared.artifacts.verified import CACHE
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError

INPUTS = "inputs.json"
"""In the folder of a run that has not published yet: the artifacts it reads, which a cleanup must not remove."""
UNFINISHED = "the unfinished run "
STATES = "states"
"""Folder in the store's home: training state by name and version, for longer trainings. Deleted with its version."""


@dataclass(frozen=True)
class Cleanup:
    """What a cleanup would remove: versions, and leftovers of killed processes."""

    versions: list[Reference]
    leftovers: list[Path]

    def size(self, store: Store) -> int:
        """Bytes it would free."""
        going = [place for found in self.versions for place in (store.folder(found), state_folder(store, found))]
        return sum(map(tree_size, [*going, *self.leftovers]))


@dataclass
class _Uses:
    """Which versions are needed, and by what, according to manifests and records of unfinished runs.

    Attributes:
        parents: the versions each version was made from.
        users: what needs each version, in words: other versions, unfinished runs, and starts.
        in_use: versions read by an unfinished run, or named by a start.
        older: versions whose manifest has an older layout.
        fine_tunings: the fine-tuning that made a version, if one did.
    """

    parents: dict[Reference, list[Reference]] = field(default_factory=dict)
    users: dict[Reference, list[str]] = field(default_factory=dict)
    in_use: set[Reference] = field(default_factory=set)
    older: set[Reference] = field(default_factory=set)
    fine_tunings: dict[Reference, str] = field(default_factory=dict)

    def newest(self, name: str, versions: list[int], keep: int) -> set[int]:
        """The newest `keep` versions of a name for each fine-tuning, and of those without one.

        Evaluations of a fine-tuning are also grouped by the models they compare: one of other models does not
        replace the fine-tuning's own comparison.
        """
        together: dict[tuple[frozenset[str], frozenset[str]], list[int]] = {}
        for version in versions:
            reference = Reference(name, version)
            found = origin(reference, self.fine_tunings, self.parents)
            made_from = frozenset(parent.name for parent in self.parents.get(reference, ()) if found)
            together.setdefault((found, made_from), []).append(version)
        return {version for ones in together.values() for version in ones[-keep:]}


def run_folder(store: Store, name: str, config_digest: str) -> Path:
    """Working folder of the run that makes `name`; it may be gone, or reused since it published."""
    return store.home / "runs" / f"{name}-{config_digest[:12]}"


def state_folder(store: Store, reference: Reference) -> Path:
    """Folder of a version's last training state, if it was kept."""
    return store.home / STATES / reference.name / f"v{reference.version}"


def remove(store: Store, reference: Reference) -> list[str]:
    """Remove one version, and return the aliases removed with it.

    Raises:
        UserError: something was made from it, a run is reading it, or a start has named it.
    """
    with removals(store):
        users = _uses(store, without=reference).users.get(reference, [])
        if users:
            more = f" and {len(users) - 3} more" if len(users) > 3 else ""
            raise UserError(f"{reference} is needed by {', '.join(users[:3])}{more}", _how_to_free(users[0]))
        dropped, graves = _take_away(store, reference)
    _delete(graves)
    return dropped


def _how_to_free(user: str) -> str:
    if parse_exact(user):
        return f"remove those first; see: nemotron artifacts lineage {user}"
    if user.startswith(UNFINISHED):
        return f"let the run finish, or remove it: nemotron runs rm {user.removeprefix(UNFINISHED)}"
    return "let it finish, or end it"


def plan_cleanup(store: Store, keep: int) -> Cleanup:
    """Plan to remove all versions except those in use and what they were made from.

    In use are the newest `keep` versions of each name and of each fine-tuning, `latest`, versions with an alias, inputs
    of unfinished runs, and versions of an older layout.
    """
    uses = _uses(store)
    # This program may not be able to make versions of an older layout again: leave those to the user.
    waiting = [*uses.in_use, *uses.older]
    for name, versions in store.shelves().items():
        numbers = {*uses.newest(name, versions, keep), store.latest_of(name, versions), *store.aliases(name).values()}
        waiting += [Reference(name, number) for number in numbers]
    kept: set[Reference] = set()
    while waiting:
        found = waiting.pop()
        if found not in kept:
            kept.add(found)
            waiting += uses.parents.get(found, [])
    # Children first, so an interrupted cleanup leaves nothing without its parents.
    children: dict[Reference, list[Reference]] = {found: [] for found in uses.parents}
    for child, parents in uses.parents.items():
        for parent in parents:
            children.setdefault(parent, []).append(child)
    try:
        order = list(TopologicalSorter(children).static_order())
    except CycleError as error:
        circle = " from ".join(map(str, error.args[1]))
        what = f"{store.root}: made in a circle, by what the manifests say: {circle}"
        raise UserError(what, "restore the manifest that is wrong, or remove the folder of that artifact") from error
    doomed = [found for found in order if found in uses.parents and found not in kept]

    folders = [store.home, store.home / CACHE, (store.home / CACHE).parent, *store.root.glob("*")]
    folders += [*(store.home / "runs").glob("*"), *(store.home / STATES).glob("*/v*")]
    leftovers = [path for folder in folders for path in folder.glob(f"{atomic.TEMPORARY_PREFIX}*")]
    leftovers += (store.root / STAGING).glob("*")
    before = time.time() - STALE_SECONDS  # anything unchanged since then is abandoned
    leftovers = [path for path in leftovers if last_change(path) < before or path.name.startswith("removed-")]
    states = (store.home / STATES).glob("*/v*")
    leftovers += [path for path in states if not (store.root / path.relative_to(store.home / STATES)).exists()]
    return Cleanup(doomed, leftovers)


def clean(store: Store, cleanup: Cleanup) -> None:
    """Carry out a cleanup, skipping versions that have come into use since it was planned."""
    graves: list[Path] = []
    with removals(store):
        users, doomed = _uses(store).users, set(map(str, cleanup.versions))
        for reference in cleanup.versions:
            if doomed.issuperset(users.get(reference, [])):
                graves += _take_away(store, reference)[1]
            else:
                doomed.discard(str(reference))
    _delete(graves)
    for path in cleanup.leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def tree_size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    total = 0
    for file in [path, *path.rglob("*")]:
        with suppress(OSError):  # deleted in the meantime
            total += file.lstat().st_size if not file.is_dir() else 0
    return total


def _take_away(store: Store, reference: Reference) -> tuple[list[str], list[Path]]:
    """Remove a version from the store; returns its aliases, and the folders whose files are left to delete."""
    folder, version = store.folder(reference), reference.version
    assert isinstance(version, int)
    graveyard = store.root / STAGING
    graveyard.mkdir(exist_ok=True)
    grave = graveyard / f"removed-{reference.name}-v{version}-{time.time_ns()}"
    try:
        folder.rename(grave)
    except OSError as error:
        raise UserError(f"{folder}: cannot be removed: {error.strerror}", "ask its owner to remove it") from error
    record(folder.parent, {version: None})
    dropped = store.drop_aliases(reference.name, version)
    (store.home / CACHE / f"{reference.name}-v{version}.json").unlink(missing_ok=True)
    return dropped, [grave, state_folder(store, reference)]


def _delete(graves: list[Path]) -> None:
    for path in graves:
        shutil.rmtree(path, ignore_errors=True)  # a later cleanup removes any remains


def _uses(store: Store, *, without: Reference | None = None) -> _Uses:
    """Read every manifest once, including those of older layouts, which recorded parents in the same way.

    Args:
        without: a version to ignore, because it is about to be removed.

    Raises:
        UserError: a manifest is too damaged to tell what the artifact was made from.
    """
    uses = _Uses()
    for child, entry in store.entries():
        if child == without:
            continue
        recorded = _parents_without_entry(store, child, entry, uses) if isinstance(entry, UserError) else entry.parents
        uses.parents[child] = [parent for parent in map(parse_exact, recorded) if parent]
        if not isinstance(entry, UserError) and entry.fine_tuning:
            uses.fine_tunings[child] = entry.fine_tuning
        for parent in uses.parents[child]:
            uses.users.setdefault(parent, []).append(str(child))
    for file in sorted((store.home / "runs").glob(f"*/{INPUTS}")):
        for parent in inputs_of(file.parent):
            uses.in_use.add(parent)
            uses.users.setdefault(parent, []).append(f"{UNFINISHED}{file.parent.name}")
    for parent, start in kept_inputs(store):
        uses.in_use.add(parent)
        uses.users.setdefault(parent, []).append(start)
    return uses


def inputs_of(run: Path) -> list[Reference]:
    """The artifacts an unfinished run reads, from its record."""
    try:
        recorded = atomic.read_json(run / INPUTS)
    except (OSError, UserError):  # missing or incomplete: the run was killed as it started
        return []
    named = recorded if isinstance(recorded, list) else []
    return [found for found in map(parse_exact, filter(_is_text, named)) if found]


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _parents_without_entry(store: Store, child: Reference, error: UserError, uses: _Uses) -> list[str]:
    """Parents recorded in an older layout; any other unreadable manifest is an error."""
    what, file = error.message, store.folder(child) / MANIFEST
    if isinstance(error, OlderLayout):
        uses.older.add(child)
        recorded = _references(json.loads(read_manifest(file)).get("parents", []))
        if recorded is not None:
            return recorded
        what = f"{file}: key 'parents' is not a list of references"
    raise UserError(
        f"{what}, so the inputs of {child} are unknown",
        f"restore the file, or remove the artifact: nemotron artifacts rm {child}",
    ) from error


def _references(parents: Any) -> list[str] | None:
    """References in a list of parents; None if it is malformed."""
    with suppress(KeyError, TypeError):
        found = [parent["reference"] for parent in parents]
        return found if all(map(_is_text, found)) else None
    return None
