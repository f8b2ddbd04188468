"""Make room in a store: remove a version, or all that nobody is likely to want again.

    remove(store, reference)   a version that nothing else was made from, and no unfinished run reads
    plan_cleanup(store, 1)     the versions and leftovers that a cleanup would remove; `clean` removes them

A version disappears by one rename, so that it is there as a whole or not at all, and then its files go.
"""

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeGuard

from nemotron_shared import atomic
from nemotron_shared.artifacts.claim import STAGING, STALE_SECONDS, last_change
from nemotron_shared.artifacts.fine_tunings import origin
from nemotron_shared.artifacts.index import record
from nemotron_shared.artifacts.manifest import MANIFEST, OlderLayout, read_manifest
from nemotron_shared.artifacts.names import Reference, parse_exact
from nemotron_shared.artifacts.store import Store
from nemotron_shared.artifacts.verified import CACHE
from nemotron_shared.errors import UserError

INPUTS = "inputs.json"
"""In the folder of a run that has not published: the artifacts it reads, which a cleanup must leave alone."""
STATES = "states"
"""In the store's home, by name and version: what a longer training would go on from. It goes with its version."""


@dataclass(frozen=True)
class Cleanup:
    """What a cleanup would remove: versions, and files or folders that killed processes left behind."""

    versions: list[Reference]
    leftovers: list[Path]

    def size(self, store: Store) -> int:
        """Bytes that it would free."""
        going = [place for found in self.versions for place in (store.folder(found), state_folder(store, found))]
        return sum(map(tree_size, [*going, *self.leftovers]))


@dataclass
class _Uses:
    """What the manifests of a store, and the records of unfinished runs, say about who needs what.

    Attributes:
        parents: what each version was made from.
        users: what needs each version, in words: other versions, and unfinished runs.
        in_use: the versions that an unfinished run reads.
        older: versions of an older layout.
        fine_tunings: the fine-tuning that made a version, where one did.
    """

    parents: dict[Reference, list[Reference]] = field(default_factory=dict)
    users: dict[Reference, list[str]] = field(default_factory=dict)
    in_use: set[Reference] = field(default_factory=set)
    older: set[Reference] = field(default_factory=set)
    fine_tunings: dict[Reference, str] = field(default_factory=dict)

    def newest(self, name: str, versions: list[int], keep: int) -> set[int]:
        """The newest `keep` versions of a name that come from the same fine-tuning, or from none.

        Of a fine-tuning, an evaluation of other models than its own two is no newer version of its comparison.
        """
        together: dict[tuple[frozenset[str], frozenset[str]], list[int]] = {}
        for version in versions:
            reference = Reference(name, version)
            found = origin(reference, self.fine_tunings, self.parents)
            made_from = frozenset(parent.name for parent in self.parents.get(reference, ()) if found)
            together.setdefault((found, made_from), []).append(version)
        return {version for ones in together.values() for version in ones[-keep:]}


def run_folder(store: Store, name: str, config_digest: str) -> Path:
    """Where the run works that makes `name`; it may be gone, or have been used again since it published."""
    return store.home / "runs" / f"{name}-{config_digest[:12]}"


def state_folder(store: Store, reference: Reference) -> Path:
    """Where the last state of the training that made a version lies, if it was kept."""
    return store.home / STATES / reference.name / f"v{reference.version}"


def remove(store: Store, reference: Reference) -> list[str]:
    """Remove one version, and return the aliases that went with it.

    Raises:
        UserError: something else was made from it, or a run is reading it.
    """
    users = _uses(store, without=reference).users.get(reference, [])
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
    """All versions but the newest `keep` of each name and of each fine-tuning, `latest`, those with an alias, and what
    any of them needs."""
    uses = _uses(store)
    # An older layout may hold what no program here can make again: a person decides.
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
    # Children go first, so that a cleanup cut short leaves nothing without its parents.
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
    before = time.time() - STALE_SECONDS  # what nothing has touched since then, nobody works on
    leftovers = [path for path in leftovers if last_change(path) < before or path.name.startswith("removed-")]
    states = (store.home / STATES).glob("*/v*")
    leftovers += [path for path in states if not (store.root / path.relative_to(store.home / STATES)).exists()]
    return Cleanup(doomed, leftovers)


def clean(store: Store, cleanup: Cleanup) -> None:
    """Carry out what `plan_cleanup` found, but for versions that have come into use since."""
    users, doomed = _uses(store).users, set(map(str, cleanup.versions))
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
    record(folder.parent, {version: None})
    dropped = store.drop_aliases(reference.name, version)
    (store.home / CACHE / f"{reference.name}-v{version}.json").unlink(missing_ok=True)
    for path in (grave, state_folder(store, reference)):
        shutil.rmtree(path, ignore_errors=True)  # what is left of it, a later cleanup sweeps
    return dropped


def _uses(store: Store, *, without: Reference | None = None) -> _Uses:
    """Read every manifest once, as far back as the first layout, which recorded parents alike.

    Args:
        without: a version that does not count, because it is about to go.

    Raises:
        UserError: a manifest is so damaged that nobody can tell what the artifact was made from.
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
            uses.users.setdefault(parent, []).append(f"the unfinished run {file.parent.name}")
    return uses


def inputs_of(run: Path) -> list[Reference]:
    """The artifacts that an unfinished run reads, by its record."""
    try:
        recorded = atomic.read_json(run / INPUTS)
    except (OSError, UserError):  # none, or half of one: the run was killed as it began
        return []
    named = recorded if isinstance(recorded, list) else []
    return [found for found in map(parse_exact, filter(_is_text, named)) if found]


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _parents_without_entry(store: Store, child: Reference, error: UserError, uses: _Uses) -> list[str]:
    """The parents that an older layout records; any other manifest that cannot be read is an error."""
    what, file = error.message, store.folder(child) / MANIFEST
    if isinstance(error, OlderLayout):
        uses.older.add(child)
        recorded = _references(json.loads(read_manifest(file)).get("parents", []))
        if recorded is not None:
            return recorded
        what = f"{file}: key 'parents' is not a list of references"
    raise UserError(
        f"{what}; so nobody can tell what {child} was made from",
        f"restore the file, or remove the artifact: nemotron artifacts rm {child}",
    ) from error


def _references(parents: Any) -> list[str] | None:
    """What a list of parents names; None where it is none."""
    with suppress(KeyError, TypeError):
        found = [parent["reference"] for parent in parents]
        return found if all(map(_is_text, found)) else None
    return None
