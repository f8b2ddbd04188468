"""`nemotron artifacts replay`: an artifact made again from its manifest has the same bytes, or is told apart."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import nemotron, run_forked, short

from nemotron_app.replay.past import past_of
from nemotron_shared.artifacts import Artifact, Producer, Store

DATA = "super3-pretrain-data"
REPLAY = nemotron("artifacts", "replay")


@pytest.fixture
def store(run, tmp_path: Path) -> Store:
    """One that holds data of pretraining."""
    run(*nemotron("super3", "data", "prep", "pretrain", *short("pretrain"), "data_prep.workers=1"))
    return Store(tmp_path / "home")


def published_again(store: Store, artifact: Artifact, change: str | None = None, **more: object) -> Artifact:
    """The same artifact once more, with a manifest that says something else; `change` is a file to append to."""
    copy = store.home / "copy"
    shutil.copytree(artifact.path, copy)
    if change:
        with (copy / change).open("ab") as file:
            file.write(b" ")
    made = artifact.manifest
    told = {"parents": made.parents, "sources": made.sources, "segments": made.segments, "producer": made.producer}
    return store.publish(copy, name=made.name, type=made.type, fingerprint=made.fingerprint, **(told | more))


def test_data_is_the_same_again_and_a_changed_file_is_named(run, store: Store) -> None:
    original = store.resolve(DATA)
    again = run(*REPLAY, DATA)
    assert f"{DATA}:v1: the same bytes, {len(original.manifest.files)} files" in again.stdout
    assert "[replay] " in again.stderr and "not as it was" not in again.stderr
    assert store.versions(DATA) == [1]  # nothing is left in the store that was replayed

    published = (original.path / "stats.json").read_bytes()
    (original.path / "stats.json").write_bytes(published + b" ")
    damaged = run(*REPLAY, DATA, "--json", ok=False)
    (told,) = json.loads(damaged.stdout)
    assert damaged.returncode == 1 and told["same"] and told["damage"][0].startswith("stats.json: ")
    assert f"the stored copy is damaged: stats.json: {len(published) + 1} bytes" in damaged.stderr
    assert (original.path / "stats.json").read_bytes() == published + b" "  # the store is only read
    kept = run(*REPLAY, DATA, "--keep", ok=False, env={"TMPDIR": str(store.home)}).stdout
    assert "restore its files from a copy; or make it again: nemotron super3 data prep pretrain" in kept
    replayed = Store(Path(kept.splitlines()[-1].partition("the store of the replay: ")[2])).resolve(DATA)
    shutil.copyfile(replayed.path / "stats.json", original.path / "stats.json")
    assert not store.verify(original)

    (first,) = original.manifest.segments
    published_again(store, original, "stats.json", segments=[first | {"how": {}}, first])
    shutil.rmtree(store.home / "runs")  # the command that was recorded is enough
    other = run(*REPLAY, f"{DATA}:v2", "--keep", "--json", ok=False, env={"TMPDIR": str(store.home)})
    (told,) = json.loads(other.stdout)
    size = (original.path / "stats.json").stat().st_size
    assert other.returncode == 1 and told["promised"] is False
    assert [file for file in told["files"] if file["problem"]] == [
        {"name": "stats.json", "problem": f"{size + 1} bytes, now {size}", "note": None}
    ]
    assert "made in 2 segments that were not alike, so its bytes are not promised" in other.stderr


def test_a_manifest_grants_no_consent(made: Path) -> None:
    model = Store(made).resolve("super3-sft-model")
    recorded = replace(model.manifest.producer, command="python -m stages.sft.train -c tiny --trust-code")
    told = replace(model, manifest=replace(model.manifest, producer=recorded))
    assert not past_of(Store(made), told).how.trust_code
    assert past_of(Store(made), told, trust_code=True).how.trust_code


def test_what_cannot_be_replayed_says_why(run, made: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(made, home)
    store = Store(home)
    data, model = store.resolve("super3-sft-data"), store.resolve("super3-sft-model")
    published_again(store, model, parents=[data.as_parent("data")])
    shutil.rmtree(data.path)
    missing = run(*REPLAY, "sft:v2", ok=False)
    assert missing.returncode == 2
    assert "super3-sft-model:v2 was made from super3-sft-data:v1: no artifact 'super3-sft-data'" in missing.stderr
    brought = Producer("sft", "import", "0", "0", "", "", None, "nemotron model import ./x", {})
    published_again(store, model, producer=brought)
    imported = run(*REPLAY, "sft:v3", ok=False)
    assert "was not made here" in imported.stderr and "bring it in again" in imported.stderr


def test_a_damaged_input_is_named_with_its_folder(run, store: Store) -> None:
    run(*nemotron("super3", "pretrain", *short("pretrain")))
    file = store.resolve(DATA).path / "stats.json"
    file.write_bytes(file.read_bytes() + b" ")
    refused = run(*REPLAY, "pretrain", ok=False).stderr
    assert f"cannot be replayed from {DATA}:v1, which is damaged: stats.json: " in refused
    assert f"(in {file.parent})" in refused and "nemotron-replay-" not in refused
    assert f"restore {file.parent} from a copy, or from its own replay: nemotron artifacts" in refused


def test_other_libraries_and_code_are_named_before_the_start(run, store: Store) -> None:
    original = store.resolve(DATA)
    then = original.manifest.producer
    older = Producer(**vars(then) | {"environment": then.environment | {"numpy": "0.1"}, "code_digest": "0" * 64})
    published_again(store, original, producer=older)
    said = run(*REPLAY, f"{DATA}:v2").stderr
    assert "not as it was: numpy 0.1 -> " in said and "not as it was: code" in said
    assert said.index("numpy 0.1") < said.index("published")


@pytest.mark.slow
def test_a_training_and_all_before_it_is_the_same_bit_by_bit(run, tmp_path: Path) -> None:
    for stage in ("pretrain", "sft"):
        run(*nemotron("super3", stage, *short(stage)))
    for name in ("pretrain", "sft-data", "sft"):
        (replayed,) = json.loads(run(*REPLAY, name, "--json").stdout)
        assert replayed["same"] and replayed["promised"] and replayed["changes"] == []

    run(*nemotron("super3", "eval", *short("eval")))  # it looks for its rows in what the models were trained on
    (scored,) = json.loads(run(*REPLAY, "eval", "--json").stdout)
    assert scored["same"] and scored["changes"] == []


@pytest.mark.slow
def test_a_training_that_began_without_a_model_is_replayed_without_one(run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\n")
    settings = [word for word in short("sft") if "=" in word]
    run(*nemotron("super3", "sft", "-c", "mine.yaml", *settings, "train.train_iters=2"))
    (tmp_path / "mine.yaml").unlink()
    again = run(*REPLAY, "sft")
    assert "the same bytes" in again.stdout and "the recorded values" in again.stderr


def test_a_moved_store_is_replayed_from_its_own_tokenizer(run, made: Path, tmp_path: Path) -> None:
    home, moved = tmp_path / "home", tmp_path / "moved"
    shutil.copytree(made, home)
    config = home / "finetune" / "mine.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(
        "defaults: [tiny, _self_]\ndata_prep: {tokenizer: {model: art://super3-pretrain-model:v1}, workers: 1}\n"
    )
    prepare = nemotron("super3", "data", "prep", "pretrain", "-c", str(config), "data_prep.synthetic_documents=60")
    run(*prepare)
    home.rename(moved)
    again = run(*REPLAY, f"{DATA}:v2", env={"NEMOTRON_HOME": str(moved)})
    assert "the same bytes" in again.stdout and "the recorded values" in again.stderr


@pytest.mark.slow
def test_a_training_of_a_moved_store_is_replayed(run, tmp_path: Path) -> None:
    home, moved = tmp_path / "home", tmp_path / "moved"
    run(*nemotron("super3", "pretrain", *short("pretrain")))
    run(*nemotron("super3", "data", "prep", "sft", *short("sft")))
    config = home / "finetune" / "mine.yaml"
    config.parent.mkdir()
    config.write_text("defaults: [local, _self_]\ntrain: {train_iters: 2}\n")
    run(*nemotron("super3", "sft", "-c", str(config), "run.data=super3-sft-data:v1"))
    home.rename(moved)
    again = run(*REPLAY, "sft", env={"NEMOTRON_HOME": str(moved)})
    assert "the same bytes" in again.stdout and "the recorded values" in again.stderr


def test_it_reads_from_the_folder_of_then_and_refuses_other_content(run, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    prepare = nemotron("super3", "data", "prep", "rl", "-c")
    rows = "".join(json.dumps({"question": f"{n} + 1?", "expected_answer": str(n + 1)}) + "\n" for n in range(60))
    (work / "sums.jsonl").write_text(rows)
    (work / "mine.yaml").write_text("defaults:\n  - tiny\n  - _self_\ndata_prep:\n  source: work/sums.jsonl\n")
    run(*prepare, "work/mine.yaml", "data_prep.workers=1")
    (work / "mine.yaml").rename(work / "moved.yaml")
    elsewhere = tmp_path / "home" / "elsewhere"
    elsewhere.mkdir()
    again = run_forked([*REPLAY, "rl-data"], elsewhere, os.environ | {"NEMOTRON_HOME": str(home)})
    assert again.returncode == 0, again.stderr
    assert "the same bytes" in again.stdout and "the recorded values" in again.stderr

    (work / "sums.jsonl").write_text(rows.replace("1 + 1?", "1 + 1 = ?"))
    changed = run(*REPLAY, "rl-data", ok=False)
    assert changed.returncode == 2 and "[replay]" not in changed.stderr
    place = f"({work / 'sums.jsonl'})"
    assert f"super3-rl-data:v1: its source work/sums.jsonl has other content now {place}" in changed.stderr
    assert f"(SHA-256 {hashlib.sha256(rows.encode()).hexdigest()[:12]}...)" in changed.stderr
    (work / "sums.jsonl").rename(work / "gone.jsonl")
    gone = run(*REPLAY, "rl-data", ok=False)
    assert f"was made from work/sums.jsonl, which is not there: {work / 'sums.jsonl'}" in gone.stderr
    assert "put a file of the same content (SHA-256 " in gone.stderr
