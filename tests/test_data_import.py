"""Data that was prepared elsewhere becomes an artifact, and the stage that reads it cannot tell the difference."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lanes import slow
from packed_support import add_document
from support import last_json, nemotron, short

from nemotron_app.main import dispatch
from nemotron_data.formats.bin_idx import IndexedDatasetWriter
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Store
from nemotron_shared.artifacts.verified import command_that_made
from nemotron_shared.system.errors import UserError


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    return Store.open()


def training(stage: str) -> list[str]:
    """The short settings of a training, none of its data: these say which data is meant."""
    return [word for word in short(stage) if not word.startswith("data_prep.")]


def carried(store: Store, name: str, into: Path) -> Path:
    """The files of an artifact as they come from another machine: without what only our store knows."""
    found = store.resolve(name)
    shutil.copytree(found.path, into, ignore=shutil.ignore_patterns("manifest.json", "stats.json", "rejected.jsonl"))
    (into / "notes.md").write_text("where it comes from")
    return into


@pytest.mark.parametrize("stage", ["sft", *slow("pretrain", "rl", "eval")])
def test_what_a_stage_prepared_comes_back_as_the_same_files(run, store: Store, tmp_path: Path, stage: str) -> None:
    run(*nemotron("super3", "data", "prep", stage, *short(stage)))
    folder = carried(store, f"{stage}-data", tmp_path / "data")
    done = run(*nemotron("super3", "data", "import", stage, "./data"))
    assert done.stdout == f"super3-{stage}-data:v2\n"
    made, back = (store.resolve(f"{stage}-data:v{version}") for version in (1, 2))
    left_out = {"stats.json", "rejected.jsonl", "data_manifest.json"}
    files = {name: entry for name, entry in made.manifest.files.items() if name not in left_out}
    assert {name: back.manifest.files[name] for name in files} == files
    assert back.manifest.files.keys() == {*files, "stats.json"}
    assert back.manifest.producer.command == f"nemotron data import {stage} data"
    figures, known = made.manifest.metadata, back.manifest.metadata
    if stage == "sft":  # the folder does not say how long rows may be; the longest says it well enough
        assert known.pop("pack_size") <= figures["pack_size"]
    for key, value in known.items():
        if key in ("splits", "tasks"):
            value = {name: {**figures[key][name], **entry} for name, entry in value.items()}
        assert figures[key] == value, key
    again = run(*nemotron("super3", "data", "import", stage, str(folder)))
    assert again.stdout == done.stdout and "unchanged" in again.stderr
    shown = last_json(run(*nemotron("super3", "data", "inspect", f"{stage}-data", "--json")))
    assert shown["splits"]
    if stage != "eval":
        checked = run(*nemotron("super3", stage, *training(stage), f"run.data=super3-{stage}-data:v2", "--dry-run"))
        assert f"data: super3-{stage}-data:v2\n" in checked.stdout


@pytest.mark.parametrize("stage", slow("sft", "pretrain"))
def test_a_stage_trains_on_imported_data(run, store: Store, tmp_path: Path, stage: str) -> None:
    run(*nemotron("super3", "data", "prep", stage, *short(stage)))
    carried(store, f"{stage}-data", tmp_path / "data")
    run(*nemotron("nano3", "data", "import", stage, "./data", "--as", "mine"))
    run(*nemotron("super3", stage, *training(stage), "run.data=mine:v1"))
    (parent,) = (one for one in store.resolve(f"{stage}-model").manifest.parents if one.role == "data")
    assert parent.reference == "mine:v1"


def pair(folder: Path, name: str = "train", ids: tuple[int, ...] = (5, 6, 7)) -> None:
    with IndexedDatasetWriter(folder / name, 100_000) as writer:
        add_document(writer, np.array(ids))


def documents(folder: Path) -> None:
    save_tokenizer(folder / "tokenizer")
    pair(folder)


def test_pairs_without_a_blend_get_one(store: Store, tmp_path: Path) -> None:
    documents(tmp_path / "data")
    pair(tmp_path / "data", "valid")
    dispatch(["data", "import", "pretrain", "data"])
    made = store.resolve("super3-pretrain-data")
    blend = json.loads((made.path / "blend.json").read_text())
    assert blend == {"train": ["1.0", "train"], "valid": ["1.0", "valid"], "test": None}
    with (tmp_path / "data" / "train.bin").open("ab") as own:
        own.write(b"more")
    assert store.verify(made) == [], "what is done to the user's file later does not reach the artifact"


def test_the_command_that_makes_it_again_names_it_alike(store: Store, tmp_path: Path) -> None:
    documents(tmp_path / "my data")
    (tmp_path / "my data" / "tokenizer").rename(tmp_path / "words")
    dispatch(["data", "import", "pretrain", "my data", "--as", "mine", "--tokenizer", "words"])
    again = command_that_made(store.resolve("mine").manifest)
    assert again == "nemotron data import pretrain 'my data' --as mine --tokenizer words"


def no_tokenizer(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer")


def cut_short(folder: Path) -> None:
    with (folder / "train.bin").open("r+b") as file:
        file.truncate(4)


def unknown_ids(folder: Path) -> None:
    pair(folder, ids=(5, 70_000))


def outside(folder: Path) -> None:
    pair(folder.parent, "elsewhere")
    (folder / "blend.json").write_text(json.dumps({"train": ["1", "../elsewhere"], "valid": None, "test": None}))


def only_validation(folder: Path) -> None:
    for ending in (".bin", ".idx"):
        (folder / f"train{ending}").rename(folder / f"valid{ending}")


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


TASK = '[{"name": "sums", "kind": "generate", "rows": 2}]'
WRONG = {
    "no tokenizer": ("pretrain", no_tokenizer, "holds no tokenizer.json"),
    "cut short": ("pretrain", cut_short, r"train\.bin: corrupt|bytes where the index needs"),
    "unknown ids": ("pretrain", unknown_ids, "ids from 5 to 70000, and the tokenizer has"),
    "outside": ("pretrain", outside, "is not a prefix below"),
    "only validation": ("pretrain", only_validation, "no pairs to train on"),
    "no rows": ("sft", lambda folder: None, r"train\.parquet: no such file"),
    "no Parquet": ("sft", write("train.parquet", "text"), "not readable as packed Parquet"),
    "no prompts": (
        "rl",
        write("train.jsonl", '{"question": "2 + 2", "expected_answer": "4"}\n'),
        r"train.jsonl:1: not a row to import \(responses_create_params is not an object.*\)\n.*data prep rl -c local",
    ),
    "no JSON": ("rl", write("train.jsonl", "{\n"), "train.jsonl:1: not a row to import"),
    "no file": ("rl", lambda folder: None, r"train\.jsonl: no such file"),
    "an empty file": ("rl", write("train.jsonl", ""), "holds no rows"),
    "no tasks": ("eval", lambda folder: None, r"holds no tasks\.json"),
    "a task without rows": ("eval", write("tasks.json", TASK), "the file of task 'sums' is missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_whole_is_one_clear_error_and_nothing_is_published(store: Store, tmp_path: Path, case: str) -> None:
    stage, damage, said = WRONG[case]
    documents(tmp_path / "data")
    damage(tmp_path / "data")
    with pytest.raises(UserError, match=said) as caught:
        dispatch(["data", "import", stage, "data"])
    assert caught.value.remedy
    assert store.names() == []


def test_a_folder_that_is_not_there_and_a_name_of_another_type_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        dispatch(["data", "import", "rl", "data"])
    documents(tmp_path / "data")
    with pytest.raises(UserError, match="is a name for a ModelArtifact, and this is a PretrainBlendsArtifact"):
        dispatch(["data", "import", "pretrain", "data", "--as", "super3-sft-model"])
    for wrong in ("", "bad/name"):
        with pytest.raises(UserError, match=f"'{wrong}' is not an artifact name"):
            dispatch(["data", "import", "pretrain", "data", "--as", wrong])
