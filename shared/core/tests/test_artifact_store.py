"""The store on a real file system: publishing, races, kills, damage, aliases and folders from outside."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from store_support import MODEL, PRODUCER, everything, folder_with, publish

from nemotron_shared.artifacts import Artifact, FileEntry, Parent, Reference, Source, Store
from nemotron_shared.system.errors import NotFound, UserError

# A program that publishes COUNT versions, one after the other, and prints each reference.
PUBLISHER = """
import itertools, pathlib, sys, tempfile, time
from nemotron_shared.artifacts import Producer, Store
home, count, go = pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
producer = Producer("sft", "train", "0", "0", "", "", None, "", {})
while not go.exists():
    time.sleep(0.002)
for index in range(count):
    folder = pathlib.Path(tempfile.mkdtemp(dir=home))
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(name.encode() * 1000)
    done = Store(home).publish(
        folder, name="super3-sft-model", type="ModelArtifact", fingerprint=str(index), producer=producer)
    print(done.reference, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "home"))


def start(store: Store, count: int, go: Path, program: str = PUBLISHER) -> subprocess.Popen:
    store.home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", program, str(store.home), str(count), str(go)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_publishing_moves_the_folder_and_records_everything(store: Store) -> None:
    folder = folder_with(store.home, {"weights.bin": "abc", "sub/config.json": "{}"})
    parent, source = Parent("super3-sft-data:v1", "e" * 64, "data"), Source("hf://org/set", "f" * 64, {"rows": 3})
    done = store.publish(
        folder, name=MODEL, type="ModelArtifact", fingerprint="f1", producer=PRODUCER, parents=[parent],
        sources=[source], metadata={"step": 40}, metrics={"final_loss": 2.5, "stderr": float("nan")},
    )  # fmt: skip
    assert not folder.exists()
    assert done.reference == "super3-sft-model:v1"
    assert done.path == store.home / "artifacts" / MODEL / "v1"
    assert sorted(done.manifest.files) == ["sub/config.json", "weights.bin"]
    sha256_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert done.manifest.files["weights.bin"] == FileEntry(sha256_of_abc, 3)
    assert done.manifest.parents == (parent,) and done.manifest.sources == (source,)
    assert done.manifest.metrics == {"final_loss": 2.5, "stderr": None}
    assert store.resolve("sft") == done
    assert store.verify(done) == []
    assert "NaN" not in (done.path / "manifest.json").read_text()


def test_equal_content_has_an_equal_digest_whatever_the_version(store: Store) -> None:
    first, second = publish(store, {"a": "x", "b": "y"}), publish(store, {"b": "y", "a": "x"})
    other = publish(store, {"a": "y", "b": "x"})
    assert first.manifest.digest == second.manifest.digest != other.manifest.digest
    assert [first.manifest.version, second.manifest.version, other.manifest.version] == [1, 2, 3]


def test_eight_writers_of_one_name_each_get_their_own_version(store: Store, tmp_path: Path) -> None:
    go = tmp_path / "go"
    writers = [start(store, 5, go) for _ in range(8)]
    go.touch()
    printed = [writer.communicate()[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8
    assert sorted(name for names in printed for name in names) == sorted(
        f"{MODEL}:v{number}" for number in range(1, 41)
    )
    assert store.versions(MODEL) == list(range(1, 41))
    assert all(store.verify(artifact) == [] for artifact in everything(store))
    assert not any(path.name.startswith("tmp") for path in store.home.iterdir())


def test_a_writer_killed_at_any_moment_leaves_only_whole_versions(store: Store, tmp_path: Path) -> None:
    seen = 0
    for lines in range(1, 6):
        (tmp_path / "go").touch()
        writer = start(store, 100_000, tmp_path / "go")
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        time.sleep(lines * 0.0007)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        artifacts = everything(store)
        assert len(artifacts) >= seen + lines
        assert all(store.verify(artifact) == [] for artifact in artifacts)
        seen = len(artifacts)


def test_a_kill_just_before_the_rename_leaves_nothing_visible_and_can_be_repeated(store: Store, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    killed = "import os, pathlib; pathlib.Path.rename = lambda *_: os._exit(9)\n" + PUBLISHER
    writer = start(store, 1, tmp_path / "go", killed)
    assert writer.communicate()[0] == "" and writer.returncode == 9
    assert everything(store) == [] and store.names() == []
    (left,) = [path for path in store.home.iterdir() if path.name.startswith("tmp")]
    (left / ".tmp-manifest.json.x").write_text("half a manif")
    assert (left / "manifest.json").is_file()
    done = store.publish(left, name=MODEL, type="ModelArtifact", fingerprint="f", producer=PRODUCER)
    assert sorted(done.manifest.files) == ["a", "b", "c"]
    assert store.verify(done) == []


def test_a_version_that_lost_its_manifest_is_damaged_and_an_empty_folder_none(store: Store) -> None:
    publish(store, {"a": "1"})
    lost = publish(store, {"a": "2"})
    (lost.path / "manifest.json").unlink()
    (store.root / MODEL / "v3").mkdir()
    (store.root / MODEL / "v4").touch()
    assert store.versions(MODEL) == [1, 2]
    for reference in (MODEL, str(lost.path)):
        with pytest.raises(UserError, match=r"v2/manifest\.json is missing"):
            store.resolve(reference)
    assert publish(store, {"a": "2"}).manifest.version == 5
    assert [(one.version, isinstance(entry, UserError)) for one, entry in store.entries()] == [
        (1, False), (2, True), (5, False)
    ]  # fmt: skip


def test_latest_is_by_number_and_not_by_spelling(store: Store) -> None:
    for index in range(11):
        publish(store, {"a": str(index)}, fingerprint=str(index % 2))
    assert store.resolve("sft").reference == f"{MODEL}:v11"
    found = store.find_by_fingerprint(MODEL, "1")
    assert found is not None and found.manifest.version == 10
    assert store.find_by_fingerprint(MODEL, "2") is None
    assert store.find_by_fingerprint("nothing", "1") is None


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a second file system")
def test_publishing_from_another_file_system_copies_first(store: Store, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is on the same file system as the temporary folder")
        folder = folder_with(Path(elsewhere), {"a": "1", "sub/b": "2"})
        os.utime(folder / "a", (0, 0))
        done = store.publish(folder, name=MODEL, type="ModelArtifact", fingerprint="f", producer=PRODUCER)
        assert not folder.exists()
    assert store.verify(done) == [] and (done.path / "sub/b").read_text() == "2"
    assert list((store.root / ".staging").iterdir()) == []


def test_left_over_copies_go_after_a_day_and_not_before(store: Store) -> None:
    from nemotron_shared.artifacts.store import sweep

    staging = store.root / ".staging"
    young, old, busy = (folder_with(staging, {"sub/a": "1"}) for _ in range(3))
    day_before_yesterday = time.time() - 2 * 24 * 3600
    for folder in (old, busy):
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (day_before_yesterday, day_before_yesterday))
    os.utime(busy / "sub/a")
    sweep(staging)
    assert young.is_dir() and busy.is_dir() and not old.exists()
    assert store.names() == []


def test_verify_names_each_missing_extra_and_changed_file(store: Store) -> None:
    done = publish(store, {"gone": "1", "same size": "22", "longer": "3", "fine": "4"})
    (done.path / "gone").unlink()
    (done.path / "same size").write_text("2x")
    (done.path / "longer").write_text("33")
    (done.path / "extra").touch()
    others = ["gone: missing", "extra: not in the manifest", "longer: 2 bytes, was 1"]
    assert sorted(store.verify(done)) == sorted([*others, "same size: content changed"])
    assert sorted(store.verify(done, fast=True)) == sorted(others)


def test_aliases_move_and_survive_the_loss_of_their_version(store: Store) -> None:
    for index in range(3):
        publish(store, {"a": str(index)})
    store.set_alias(MODEL, 1, "best")
    store.set_alias(MODEL, 3, "best")
    store.set_alias(MODEL, 1, "first")
    assert store.aliases(MODEL) == {"best": 3, "first": 1}
    assert store.resolve("sft:best").reference == f"{MODEL}:v3"
    (store.root / MODEL / "v3").rename(store.home / "removed")
    with pytest.raises(UserError, match="no super3-sft-model:best"):
        store.resolve("sft:best")
    assert publish(store, {"a": "new"}).manifest.version == 4
    for version, alias in ((9, "best"), (1, "latest"), (1, "v2"), (1, "2")):
        with pytest.raises(UserError):
            store.set_alias(MODEL, version, alias)


def test_aliases_set_at_once_by_many_processes_are_all_kept(store: Store) -> None:
    publish(store, {"a": "1"})
    program = "import sys; from nemotron_shared.artifacts import Store\n"
    program += "for i in range(20): Store.open(sys.argv[1]).set_alias('super3-sft-model', 1, f'{sys.argv[2]}-{i}')"
    writers = [subprocess.Popen([sys.executable, "-c", program, str(store.home), f"w{i}"]) for i in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(store.aliases(MODEL)) == 80


def test_what_is_missing_is_reported_with_what_exists(store: Store) -> None:
    with pytest.raises(UserError, match="which is empty"):
        store.resolve("sft")
    publish(store, {"a": "1"})
    store.set_alias(MODEL, 1, "best")
    for text, hint in [
        ("super3-sft-modle", "did you mean 'super3-sft-model'"),
        ("nothing-alike", "it holds: super3-sft-model"),
        ("sft:v7", "super3-sft-model has: v1, best -> v1"),
        ("sft:bets", "did you mean 'best'"),
    ]:
        with pytest.raises(UserError, match=hint):
            store.resolve(text)
    with pytest.raises(UserError, match="no super3-sft-model:v2"):
        store.resolve(Reference(MODEL, 2))


def test_of_long_lists_a_message_tells_both_ends(store: Store) -> None:
    for number in range(12):
        publish(store, {"a": str(number)})
        publish(store, {"a": "1"}, name=f"other-{number}")
    store.set_alias(MODEL, 1, "best")
    for text, hint in [
        ("sft:v70", r"has: v1, v2, v3, \.\.\., v10, v11, v12 \(12 in all\), best -> v1$"),
        ("nothing-alike", r"other-8, other-9, super3-sft-model \(13 in all\)$"),
    ]:
        with pytest.raises(UserError, match=hint):
            store.resolve(text)


def test_the_type_is_checked_on_request(store: Store) -> None:
    done = publish(store, {"a": "1"})
    assert store.resolve("sft", expect="ModelArtifact") == done
    with pytest.raises(UserError, match="is of type ModelArtifact, and SFTDataArtifact is needed"):
        store.resolve("sft", expect="SFTDataArtifact")


def test_the_name_of_a_hugging_face_form_is_that_of_the_model(store: Store) -> None:
    plain = publish(store, {"a": "1"})
    assert store.resolve(f"{MODEL}-hf") == store.resolve(f"{MODEL}-hf:v1") == plain
    own = publish(store, {"a": "2"}, name=f"{MODEL}-hf")
    assert store.resolve(f"{MODEL}-hf") == own
    with pytest.raises(NotFound, match="no artifact 'super3-rl-model-hf'"):
        store.resolve("super3-rl-model-hf")


def test_the_path_of_a_version_is_that_version(store: Store, tmp_path: Path, monkeypatch) -> None:
    done = publish(store, {"a": "1"})
    assert store.resolve(str(done.path)) == done
    (tmp_path / "link").symlink_to(done.path)
    assert store.resolve(str(tmp_path / "link")) == done
    folder_with(tmp_path, {"a": "1"}).rename(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("./my-model").is_external
    with pytest.raises(UserError, match=r"write \./my-model"):
        store.resolve("my-model")


def test_a_folder_of_other_things_is_no_artifact_and_nothing_in_it_is_to_be_removed(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "link").symlink_to("/nowhere")
    with pytest.raises(UserError, match="not a file") as caught:
        store.resolve(str(tmp_path / "etc"))
    assert caught.value.remedy and "holds no artifact" in caught.value.remedy and "remove" not in caught.value.remedy


@pytest.mark.parametrize("path", ["./\0b", "./" + "x/" * 2500, "./" + "x" * 300, "~nobody-of-that-name/x"])
def test_a_name_that_no_folder_can_have_is_that_of_none(store: Store, path: str) -> None:
    with pytest.raises(NotFound, match="no such folder"):
        store.resolve(path)


def test_links_are_refused_unless_allowed_and_sound(store: Store, tmp_path: Path) -> None:
    raw = tmp_path / "raw.bin"
    raw.write_text("raw")

    def attempt(target: str, links: bool) -> Artifact:
        folder = folder_with(store.home, {"a": "1"})
        (folder / "link").symlink_to(target.replace("HERE", str(folder)))
        return store.publish(folder, name="x", type="ModelArtifact", fingerprint="f", producer=PRODUCER, links=links)

    assert store.verify(attempt(str(raw), True)) == []
    assert (attempt("a", True).path / "link").read_text() == "1"
    for target, links in [
        (str(raw), False), ("a", False), ("HERE/a", True), ("../../raw.bin", True), ("nothing", True), ("HERE", True)
    ]:  # fmt: skip
        with pytest.raises(UserError):
            attempt(target, links)
    assert store.versions("x") == [1, 2]


def test_what_cannot_be_published_is_refused_before_anything_moves(store: Store) -> None:
    folder = folder_with(store.home, {"a": "1"})
    good = {"name": "x", "type": "ModelArtifact", "fingerprint": "f", "producer": PRODUCER}
    bad = [
        {"name": "../x"}, {"name": "X"}, {"type": "ModelArtefact"}, {"parents": [Parent("x", "d", "data")]},
        {"parents": [Parent("x:latest", "d", "data")]},
    ]  # fmt: skip
    for change in bad:
        with pytest.raises(UserError):
            store.publish(folder, **(good | change))
    for wrong in (folder / "none", folder / "a", folder_with(store.home, {})):
        with pytest.raises(UserError):
            store.publish(wrong, **good)
    os.mkfifo(folder / "pipe")
    with pytest.raises(UserError, match="not a file"):
        store.publish(folder, **good)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "pipe"] and store.names() == []


def test_the_home_is_the_argument_then_the_environment_then_the_working_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMOTRON_HOME", raising=False)
    assert Store.open().home == tmp_path / ".nemotron"
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "set"))
    assert Store.open(None).home == tmp_path / "set"
    assert Store.open("given").home == tmp_path / "given"


def test_a_store_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for place, what in (("file", "here: not a folder"), ("file/deeper", "file is not a folder"), ("nowhere", "a link")):
        with pytest.raises(UserError, match=f"the store cannot be here: .*{what}|{what}"):
            Store.open(str(tmp_path / place))
    assert Store.open(str(tmp_path / "new" / "deeper")).names() == []
