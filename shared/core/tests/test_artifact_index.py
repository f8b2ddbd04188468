"""The index of a store: how often manifests are read, and that it is never believed against them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_support import MODEL, publish

from nemotron_shared.artifacts import Manifest, Reference, Store
from nemotron_shared.artifacts.housekeeping import plan_cleanup
from nemotron_shared.artifacts.index import ENTRIES, Entry
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.system.errors import UserError

VERSIONS = 6
LIST = """
import sys
from pathlib import Path
from nemotron_shared.artifacts import Store
for _ in range(20):
    assert len(list(Store(Path(sys.argv[1])).entries())) >= int(sys.argv[2])
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of some versions, old enough to be remembered."""
    store = Store.open(str(tmp_path / "home"))
    for number in range(VERSIONS):
        publish(store, {"a": "x" * number}, fingerprint=str(number))
    time.sleep(0.15)
    return store


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions whose manifests were read."""
    versions: list[str] = []
    parse = Manifest.parse.__func__

    def counted(cls: type[Manifest], content: bytes, path: Path) -> Manifest:
        versions.append(path.parent.name)
        return parse(cls, content, path)

    monkeypatch.setattr(Manifest, "parse", classmethod(counted))
    return versions


def listed(store: Store) -> dict[str, Entry | str]:
    """What a list shows; of what cannot be read, why."""
    return {str(one): found.message if isinstance(found, UserError) else found for one, found in store.entries()}


def test_a_manifest_is_read_once_for_all_lists_and_searches(store: Store, read: list[str]) -> None:
    before = listed(store)
    assert sorted(read) == [f"v{number + 1}" for number in range(VERSIONS)]
    read.clear()
    assert listed(store) == before and plan_cleanup(store, 1).versions
    assert store.find_by_fingerprint(MODEL, "nothing") is None and read == []
    assert store.find_by_fingerprint(MODEL, "2") is not None and read == ["v3"]
    assert [entry.bytes for entry in before.values() if isinstance(entry, Entry)] == list(range(VERSIONS))


def test_only_what_was_touched_is_read_again(store: Store, read: list[str]) -> None:
    listed(store)
    read.clear()
    (store.folder(Reference(MODEL, 2)) / MANIFEST).touch()
    publish(store, {"a": "new"}, fingerprint="new")
    read.clear()
    assert len(listed(store)) == VERSIONS + 1 and sorted(read) == ["v2", f"v{VERSIONS + 1}"]


def test_what_the_files_say_counts(store: Store) -> None:
    before = listed(store)
    one = store.folder(Reference(MODEL, 1)) / MANIFEST
    other = (store.folder(Reference(MODEL, 2)) / MANIFEST).read_bytes()
    one.write_bytes(other)  # of another version
    (store.folder(Reference(MODEL, 3)) / MANIFEST).write_bytes(b"{")
    (store.folder(Reference(MODEL, 4)) / MANIFEST).unlink()
    now = listed(store)
    assert "describes super3-sft-model:v2" in str(now[f"{MODEL}:v1"])
    assert "not valid JSON" in str(now[f"{MODEL}:v3"])
    assert str(now[f"{MODEL}:v4"]).endswith("manifest.json is missing") and now[f"{MODEL}:v5"] == before[f"{MODEL}:v5"]
    with pytest.raises(UserError, match="not valid JSON"):  # what was made once is not made again silently
        store.find_by_fingerprint(MODEL, "2")
    with pytest.raises(UserError, match=r"manifest\.json is missing"):
        store.find_by_fingerprint(MODEL, "3")


@pytest.mark.parametrize("damage", ["delete", "truncate", "edit", "directory", "pipe", "other code"])
def test_a_useless_index_is_made_again(store: Store, read: list[str], monkeypatch, damage: str) -> None:
    before = listed(store)
    file = store.home / ENTRIES
    content = file.read_bytes()
    file.unlink()
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    if damage == "edit":
        file.write_bytes(content.replace(b"ModelArtifact", b"OtherArtifact"))
    if damage == "directory":
        file.mkdir()
    if damage == "pipe":
        os.mkfifo(file)
    if damage == "other code":
        file.write_bytes(content)
        monkeypatch.setattr("nemotron_shared.artifacts.index._reader", lambda: "another")
    read.clear()
    assert listed(store) == before and len(read) == VERSIONS
    read.clear()
    assert listed(store) == before and len(read) == (VERSIONS if damage in ("directory", "pipe") else 0)


def test_a_pipe_in_place_of_a_manifest_is_told(store: Store) -> None:
    file = store.folder(Reference(MODEL, 2)) / MANIFEST
    file.unlink()
    os.mkfifo(file)
    assert "not a regular file" in str(listed(store)[f"{MODEL}:v2"])
    with pytest.raises(UserError, match="not a regular file, so the inputs of"):
        plan_cleanup(store, 1)


@pytest.mark.parametrize("looped", ["manifest", "folder"])
def test_a_link_to_itself_in_place_of_a_version_costs_no_other(store: Store, looped: str) -> None:
    folder = store.folder(Reference(MODEL, 2))
    file = folder / MANIFEST if looped == "manifest" else folder.rename(folder.with_name("moved")) and folder
    file.unlink(missing_ok=True)
    file.symlink_to(file.name)
    found = listed(store)
    assert len(found) == VERSIONS and "Too many levels of symbolic links" in str(found[f"{MODEL}:v2"])


def test_a_store_that_cannot_be_written_to_is_listed_all_the_same(store: Store, read: list[str], monkeypatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("nemotron_shared.system.atomic.write_bytes", refuse)
    assert len(listed(store)) == len(listed(store)) == VERSIONS
    assert len(read) == 2 * VERSIONS and not (store.home / ENTRIES).exists()


def test_an_index_forgets_what_is_gone(store: Store) -> None:
    listed(store)
    store.folder(Reference(MODEL, 1)).rename(store.home / "gone")
    (store.folder(Reference(MODEL, 2)) / MANIFEST).unlink()
    listed(store)
    known = json.loads((store.home / ENTRIES).read_bytes().partition(b"\n")[2])
    shelf = store.root / MODEL
    assert known.keys() == {str(shelf), *(str(shelf / f"v{version}" / MANIFEST) for version in range(3, VERSIONS + 1))}


def test_lists_and_publishing_at_the_same_time_agree_in_the_end(store: Store) -> None:
    listing = [subprocess.Popen([sys.executable, "-c", LIST, str(store.home), str(VERSIONS)]) for _ in range(2)]
    for number in range(20):
        publish(store, {"a": "x"}, fingerprint=f"late {number}")
    assert [process.wait() for process in listing] == [0, 0]
    assert len(listed(store)) == VERSIONS + 20
    found = store.find_by_fingerprint(MODEL, "late 7")
    assert found is not None and found.manifest.version == VERSIONS + 8
