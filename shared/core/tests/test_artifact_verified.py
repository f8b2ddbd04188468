"""What is damaged is never used: every single byte counts, and looking twice costs nothing."""

import json
import os
import random
import threading
import time
from pathlib import Path

import pytest
from store_support import MODEL, PRODUCER, folder_with, publish

from nemotron_shared.artifacts import Artifact, Parent, Producer, Store, verified
from nemotron_shared.artifacts.verified import command_that_made, require_intact
from nemotron_shared.system.console import CLEAR, renew
from nemotron_shared.system.digest import file_digest, in_threads
from nemotron_shared.system.errors import UserError

HOW = "make it: nemotron super3 pretrain -c tiny --force"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "home"))


def age(artifact: Artifact) -> None:
    """Long enough after the last write that what is found now can be remembered."""
    time.sleep(0.15)
    require_intact(artifact, artifact.path.parents[2], HOW)


def is_refused(store: Store, name: str, fingerprint: str) -> bool:
    """Whether a step that reads this artifact, and one that would use it again, both refuse it."""
    refusals = 0
    for find in (lambda: store.resolve(name), lambda: store.find_by_fingerprint(name, fingerprint)):
        try:
            found = find()
            assert found is not None, "a damaged result must not be made again silently"
            require_intact(found, store.home, HOW)
        except UserError as error:
            refusals += bool(error.remedy)
    return refusals == 2


def test_a_hundred_changed_bytes_are_a_hundred_refusals(store: Store) -> None:
    chance = random.Random(4)
    parent = Parent("super3-sft-data:v1", "e" * 64, "data")
    files = {"model.safetensors": "x" * 3000, "config.json": '{"a": 1}', "deep/tokenizer.json": "é" * 300}
    done = publish(store, files, fingerprint="f" * 64, parents=[parent], metadata={"n": 1.5}, metrics={"loss": 2.25})
    age(done)
    targets = [*(done.path / name for name in files), *[done.path / "manifest.json"] * 3]
    missed = []
    for _ in range(100):
        path = chance.choice(targets)
        whole = path.read_bytes()
        place, byte = chance.randrange(len(whole)), chance.randrange(1, 256)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ byte]))
        try:
            verified = bool(store.verify(store.resolve(MODEL)))
        except UserError:
            verified = True
        if not verified or not is_refused(store, MODEL, "f" * 64):
            missed.append((path.name, place, byte))
        path.write_bytes(whole)
    assert missed == []
    require_intact(store.resolve(MODEL), store.home, HOW)


def test_a_change_is_seen_whatever_its_modification_time_says(store: Store) -> None:
    done = publish(store, {"weights": "x" * 100})
    age(done)
    before = (done.path / "weights").stat()
    (done.path / "weights").write_text("x" * 99 + "y")
    os.utime(done.path / "weights", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="super3-sft-model:v1 is damaged: weights: content changed"):
        require_intact(done, store.home, HOW)


def test_many_small_files_are_announced_as_a_large_one_is(store: Store, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("nemotron_shared.artifacts.verified.ANNOUNCED_BYTES", 10)
    store.resolve(str(folder_with(tmp_path, {"a": "123"})))
    assert "hashing" not in capsys.readouterr().err
    store.resolve(str(folder_with(tmp_path, dict.fromkeys("abcdef", "123"))))
    assert capsys.readouterr().err.count("hashing") == 1
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    renew("step 1/9")
    store.resolve(str(folder_with(tmp_path, dict.fromkeys("abcdefg", "123"))))
    assert f"{CLEAR}step 1/9{CLEAR}[" in capsys.readouterr().err, "it takes the place of a line that renews itself"


def test_an_interruption_waits_for_no_large_file(tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    began = threading.Event()

    def take(name: str) -> str:
        if name == "late":
            began.wait()
            raise KeyboardInterrupt
        began.set()
        return file_digest(tmp_path / name)

    with pytest.raises(KeyboardInterrupt):
        in_threads(take, ["late", "large"])


def test_the_second_use_reads_no_file(store: Store, tmp_path: Path, monkeypatch) -> None:
    hashed: list[str] = []

    def counting(path: Path) -> str:
        hashed.append(path.name)
        return file_digest(path)

    monkeypatch.setattr("nemotron_shared.artifacts.verified.file_digest", counting)
    done = publish(store, {"a": "1", "b": "2"})
    outside = folder_with(tmp_path, {"config.json": "{}"})
    time.sleep(0.15)
    for expected in (["a", "b", "config.json"], []):
        hashed.clear()
        require_intact(done, store.home, HOW)
        external = store.resolve(str(outside))
        assert sorted(hashed) == expected
    (outside / "config.json").write_text("[]")
    assert store.resolve(str(outside)).manifest.digest != external.manifest.digest


def test_what_was_written_a_moment_ago_is_hashed_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # a loaded machine needs longer than a tick
    monkeypatch.setattr("nemotron_shared.system.file_cache.TICK_NS", 10**15)
    done = publish(store, {"a": "1"})
    require_intact(done, store.home, HOW)
    assert not (store.home / "cache").exists()


def test_a_damaged_or_unwritable_cache_changes_no_answer(store: Store, monkeypatch) -> None:
    done = publish(store, {"a": "1"})
    age(done)
    (cache,) = (store.home / "cache" / "verified").iterdir()
    whole = cache.read_text()
    for text in ("{", "[]", '{"files": 3, "digest": ""}', whole.replace(file_digest(done.path / "a"), "0" * 64)):
        cache.write_text(text)
        require_intact(done, store.home, HOW)

    def refuse(path: Path, content: object) -> None:
        raise PermissionError(path)

    cache.unlink()
    monkeypatch.setattr("nemotron_shared.system.atomic.write_json", refuse)
    require_intact(done, store.home, HOW)
    (done.path / "a").write_text("2")
    with pytest.raises(UserError, match="a: content changed"):
        require_intact(done, store.home, HOW)


def test_what_a_stage_from_outside_made_is_made_again_by_its_own_command(store: Store) -> None:
    command = "python -m acme.harvest.train -c tiny run.family=nano3 --json"
    made = publish(store, {"a": "1"}, producer=Producer("harvest", "train", "0", "0", "", "", None, command, {}))
    (made.path / "a").write_text("2")
    with pytest.raises(UserError) as caught:
        require_intact(made, store.home, HOW)
    again = "make it again: python -m acme.harvest.train -c tiny run.family=nano3 --force"
    assert caught.value.remedy == f"restore its files from a copy; or {again}"


def test_the_remedy_is_the_command_that_made_it(store: Store) -> None:
    command = "python -m stages.pretrain.data_prep -c tiny 'data_prep.text=a b' run.family=nano3 --json"
    made = publish(store, {"a": "1"}, producer=Producer("pretrain", "data_prep", "0", "0", "", "", None, command, {}))
    again = "nemotron nano3 data prep pretrain -c tiny 'data_prep.text=a b' --force"
    assert command_that_made(made.manifest) == again
    (made.path / "a").write_text("2")
    with pytest.raises(UserError) as caught:
        require_intact(made, store.home, HOW)
    assert caught.value.remedy == f"restore its files from a copy; or make it again: {again}"
    (made.path / "a").write_text("1")
    (made.path / "stray").touch()
    with pytest.raises(UserError) as caught:
        require_intact(made, store.home, HOW)
    assert caught.value.remedy == f"delete what does not belong there: {made.path / 'stray'}"
    (made.path / "manifest.json").write_bytes((made.path / "manifest.json").read_bytes() + b" ")
    with pytest.raises(UserError, match=r"manifest\.json: content changed") as caught:
        require_intact(store.resolve(MODEL), store.home, HOW)
    assert caught.value.remedy == HOW


def test_a_version_is_found_by_its_fingerprint_with_and_without_the_index(store: Store, monkeypatch) -> None:
    for number in range(5):
        publish(store, {"a": str(number)}, fingerprint=str(number % 3))
    index = store.root / MODEL / "index.json"
    for content in (None, "{", "[]", '{"x": 1}', '{"4": "9"}'):
        if content is None:
            index.unlink()
        else:
            index.write_text(content)
        if content != '{"4": "9"}':
            found = store.find_by_fingerprint(MODEL, "0")
            assert found is not None and found.manifest.version == 4
        elif content:
            assert store.find_by_fingerprint(MODEL, "9") is None  # the manifest says otherwise, and is believed
    read: list[int] = []
    load = Store.load
    monkeypatch.setattr(Store, "load", lambda self, name, version: read.append(version) or load(self, name, version))
    assert store.find_by_fingerprint(MODEL, "1") is not None and read == [5]


@pytest.mark.parametrize(
    ("umask", "folders", "files"), [(0o022, 0o755, 0o644), (0o002, 0o775, 0o664), (0o077, 0o700, 0o600)]
)
def test_the_umask_says_who_reads_what_is_published(store: Store, umask: int, folders: int, files: int) -> None:
    before = os.umask(umask)
    try:
        store.home.mkdir(parents=True, exist_ok=True)
        store.home.chmod(0o2770)  # of a group whose members share it
        folder = folder_with(store.home, {"model.safetensors": "1", "deep/config.json": "2"})
        (folder / "model.safetensors").chmod(0o600)  # as the library writes it
        (folder / "deep").chmod(0o2700)
        done = store.publish(folder, name=MODEL, type="ModelArtifact", fingerprint="f", producer=PRODUCER)
    finally:
        os.umask(before)
    paths = [done.path, *done.path.rglob("*"), *done.path.parent.glob("*.json")]
    assert len(paths) >= 6
    assert {path.name: path.stat().st_mode & 0o777 for path in paths} == {
        path.name: folders if path.is_dir() else files for path in paths
    }
    assert (done.path / "deep").stat().st_mode & 0o2000, "new files there belong to the group too"
    assert {path.stat().st_gid for path in paths} == {store.home.stat().st_gid}


def test_an_older_layout_is_named_as_one(store: Store) -> None:
    done = publish(store, {"a": "1"})
    content = json.loads((done.path / "manifest.json").read_text()) | {"schema_version": 1}
    del content["self_digest"]
    (done.path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="an older layout: schema_version is 1") as caught:
        store.resolve(MODEL)
    assert "cp -r" in str(caught.value.remedy)


def test_digests_are_kept_where_the_folder_of_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text("{}")
    os.utime(model / "config.json", (1, 1))
    time.sleep(0.15)
    digest = Store(tmp_path / "scratch" / "of" / "a_cluster").resolve(str(model)).manifest.digest
    assert not (tmp_path / "scratch").exists()
    assert Store(tmp_path / "home").resolve(str(model)).manifest.digest == digest
    monkeypatch.setattr(verified, "file_digest", lambda path: pytest.fail("hashed again"))
    assert Store(tmp_path / "home").resolve(str(model)).manifest.digest == digest
