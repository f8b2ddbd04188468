"""Which prepared set a path or a name means to `nemotron data inspect`, and what it says where there is none."""

import json
from pathlib import Path

import numpy as np
import pytest
from packed_support import add_document, write_packed

from nemotron_app.main import dispatch
from nemotron_data.formats.bin_idx import IndexedDatasetWriter, write_blend
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Artifact, Producer, Store
from nemotron_shared.system.errors import UserError


def main(argv: list[str]) -> int:
    return dispatch(["data", "inspect", *argv])


SEQUENCE = ([5, 6, 7, 8], [0, 0, 1, 1])


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    folder = tmp_path / "chats"
    save_tokenizer(folder / "tokenizer")
    for number, name in enumerate(("train", "valid", "test")):
        write_packed(folder / f"{name}.parquet", [([9 + number, *SEQUENCE[0]], [0, *SEQUENCE[1]])], [[0]])
    return folder


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    save_tokenizer(folder / "tokenizer")
    prefixes = {name: f"{name}/web/shard_000000" for name in ("train", "valid")}
    for length, prefix in enumerate(prefixes.values(), start=3):
        with IndexedDatasetWriter(folder / prefix, 512) as writer:
            for first in range(4):
                add_document(writer, np.array([first + 5] * length))
    write_blend(folder / "blend.json", {name: [(1.0, prefix)] for name, prefix in prefixes.items()})
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("train", "val"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"question": f"{name} {n}"}) + "\n" for n in range(2)))
    (folder / "rejected.jsonl").write_text("")
    return folder


def figures(capsys, *argv: str | Path) -> dict:
    assert main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def publish(store: Store, folder: Path, name: str, type) -> Artifact:
    producer = Producer("sft", "data_prep", "0.1.0", "0.1.0", "c", "d", "abc", "nemotron super3 data prep sft", {})
    return store.publish(folder, name=name, type=type, fingerprint="f", producer=producer)


def test_an_artifact_is_found_by_name_and_checked_against_its_manifest(chats, rows, tmp_path, capsys):
    store = Store.open(str(tmp_path / "home"))
    made = publish(store, chats, "nano3-sft-data", "SFTDataArtifact")
    home = ("--home", store.home)
    for words in (("nano3-sft-data:latest",), ("sft-data", "--family", "nano3"), (made.path,)):
        assert figures(capsys, *words, *home)["title"] == "nano3-sft-data:v1"
    (made.path / "test.parquet").unlink()
    found = figures(capsys, "nano3-sft-data", *home)
    assert found["warnings"][0] == "differs from its manifest: test.parquet: missing"
    with pytest.raises(UserError, match="did you mean 'nano3-sft-data'"):
        main(["nano3-sft-dat", "--home", str(store.home)])
    publish(store, rows, "nano3-sft-model", "ModelArtifact")
    with pytest.raises(UserError, match="is a ModelArtifact"):
        main(["nano3-sft-model", "--home", str(store.home)])


def test_single_files_are_understood(documents, chats, rows, capsys):
    prefix = documents / "train" / "web" / "shard_000000"
    for path in (prefix, f"{prefix}.bin", f"{prefix}.idx"):
        found = figures(capsys, path)
        assert found["splits"]["train"]["examples"] == 4 and found["vocab_size"] == 512 and found["warnings"] == []
    assert list(figures(capsys, documents / "blend.json")["splits"]) == ["train", "valid"]
    assert figures(capsys, chats / "valid.parquet")["splits"]["valid"]["examples"] == 1
    assert figures(capsys, rows / "val.jsonl")["splits"]["valid"]["examples"] == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("chats/train.parqet", "did you mean 'train.parquet'"),
        ("chast", "did you mean 'chats'"),
        ("rejected.txt", "give an"),
    ],
)
def test_what_is_not_there_is_an_error_with_a_remedy(chats, tmp_path, wrong, message):
    with pytest.raises(UserError) as caught:
        main([str(tmp_path / wrong)])
    assert "no such file or folder" in caught.value.message and message in (caught.value.remedy or "")


def test_what_is_no_prepared_set_is_an_error(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "train.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.jsonl").write_text("\n \n")

    messages = {"train.parquet": "not packed data", "broken.parquet": "not readable as Parquet",
                "notes.txt": "not a prepared set", "empty": "holds no prepared data",
                "blank.jsonl": "holds no rows"}  # fmt: skip
    for name, message in messages.items():
        with pytest.raises(UserError, match=message):
            main([str(tmp_path / name)])
