"""From text to token shards."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import normalizers, processors

from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import find_blend
from nemotron_data.sources.input_file import local_file
from nemotron_data.sources.reading import Row, read_files
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from stages.pretrain.data_prep import ROWS, main
from stages.pretrain.documents import Vocabulary, text_of, with_boundaries
from stages.pretrain.schema import PretrainConfig, PretrainData

CONFIG = Path(__file__).parent.parent / "config"
ALL_IN_TRAIN = "data_prep.split={train: 1, valid: 0, test: 0}"
ODD = ["Mira lives in Oster.", "Grüße, 世界! 🙂", "a\nb\r\nc\u2028d", "fifty" + " " * 50 + "spaces", "<|im_end|>\0"]
TEXTS = ODD + [f"row {n}" for n in range(40)]


def settings(*overrides: str) -> PretrainData:
    values = resolve(compose(CONFIG, "tiny", overrides).tree, lambda role, field: None)
    return PretrainConfig.model_validate(values).data_prep


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def prepare(home: Path, source: Path, *overrides: str, expect: int = 0) -> Artifact:
    code = main(["-c", "tiny", f"data_prep.source={source}", *overrides])
    assert code == expect
    return Store(home).resolve("super3-pretrain-data:latest") if code == 0 else None


def stats(artifact: Artifact) -> dict:
    return json.loads((artifact.path / "stats.json").read_text())


def rejected(artifact: Artifact) -> list[dict]:
    return [json.loads(line) for line in (artifact.path / "rejected.jsonl").read_text().splitlines()]


def write_lines(path: Path, values: list) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def texts_in(artifact: Artifact, split: str) -> list[str]:
    """Documents decoded, in order."""
    tokenizer = TokenizerFolder(artifact.path / "tokenizer")
    end = tokenizer.special_ids()["eos_token"]
    found = []
    for _, prefix in read_blend(artifact.path / "blend.json").get(split, []):
        dataset = IndexedDataset(prefix)
        for index in range(len(dataset)):
            assert dataset[index][-1] == end
            found.append(tokenizer.tokenizer.decode(dataset[index][:-1].tolist(), skip_special_tokens=False))
    return found


def test_every_document_comes_back_whole_with_its_end(tmp_path: Path, home: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    made = prepare(home, source, "data_prep.split={train: 0.6, valid: 0.2, test: 0.2}")
    found = {split: texts_in(made, split) for split in ("train", "valid", "test")}
    assert all(found.values())
    assert sorted(text for texts in found.values() for text in texts) == sorted(TEXTS)
    assert stats(made)["counts"]["rows"] == len(TEXTS)
    again = prepare(home, source, ALL_IN_TRAIN)
    assert texts_in(again, "train") == TEXTS, "in the order of the input"


def test_equal_documents_fall_in_one_split(tmp_path: Path, home: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": f"row {n % 50}"} for n in range(500)])
    made = prepare(home, source, "data_prep.split={train: 0.5, valid: 0.5, test: 0}")
    assert not set(texts_in(made, "train")) & set(texts_in(made, "valid"))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_the_bytes_are_those_of_the_format(tmp_path: Path, home: Path, form: str) -> None:
    texts = [f"{n} " + "word " * (n % 17) for n in range(300)]
    source = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"text": texts}), source, row_group_size=40)
    else:
        write_lines(source, [{"text": text} for text in texts])
    made = prepare(home, source, ALL_IN_TRAIN, "data_prep.merge=true")
    tokenizer = TokenizerFolder(made.path / "tokenizer")
    end = tokenizer.special_ids()["eos_token"]
    ids = [[*tokenizer.tokenizer.encode(text, add_special_tokens=False).ids, end] for text in texts]
    lengths = [len(document) for document in ids]
    starts = np.cumsum([0, *lengths[:-1]]) * 2
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 300, 301) + np.array(lengths, "<i4").tobytes()
    index += starts.astype("<i8").tobytes() + np.arange(301, dtype="<i8").tobytes()
    prefix = made.path / "train" / "documents"
    assert prefix.with_suffix(".bin").read_bytes() == np.concatenate(ids).astype("<u2").tobytes()
    assert prefix.with_suffix(".idx").read_bytes() == index


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    random.seed(0)
    words = [f"w{n}" for n in range(300)]
    rows = [{"text": " ".join(random.choices(words, k=random.randint(1, 400)))} for _ in range(4000)]
    return write_lines(tmp_path / "corpus.jsonl", rows)


SMALL_SHARDS = ("data_prep.shard_mb=1", "data_prep.merge=true")


@pytest.mark.slow
def test_workers_and_executors_make_no_difference(tmp_path: Path, home: Path, corpus: Path) -> None:
    digests = {
        (prepare(home, corpus, *SMALL_SHARDS, f"data_prep.workers={workers}", "run.force=true")).manifest.digest
        for workers in (1, 3)
    }
    assert len(digests) == 1
    slow = prepare(home, corpus, *SMALL_SHARDS, "data_prep.tokenizer.backend=tokenizers", "run.force=true")
    assert {slow.manifest.digest} == digests
    assert slow.manifest.metadata["encoder"]["backend"] == "tokenizers"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 7])
def test_any_number_of_workers_makes_the_same_bytes(tmp_path: Path, home: Path, corpus: Path, workers: int) -> None:
    one = prepare(home, corpus, *SMALL_SHARDS, "data_prep.workers=1")
    several = prepare(home, corpus, *SMALL_SHARDS, f"data_prep.workers={workers}", "run.force=true")
    assert several.manifest.digest == one.manifest.digest


@pytest.mark.slow
def test_ray_makes_the_same_bytes(tmp_path: Path, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.chdir(tmp_path)
    here = prepare(home, Path("corpus.jsonl"), *SMALL_SHARDS)
    there = prepare(home, Path("corpus.jsonl"), *SMALL_SHARDS, "--executor", "ray", "--workers", "2", "--force")
    assert there.manifest.digest == here.manifest.digest
    assert there.manifest.version != here.manifest.version


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bytes(tmp_path: Path, home: Path, corpus: Path) -> None:
    whole = prepare(home, corpus, *SMALL_SHARDS)
    command = [sys.executable, str(CONFIG.parent / "data_prep.py"), "-c", "tiny", f"data_prep.source={corpus}",
               *SMALL_SHARDS, "data_prep.workers=2"]  # fmt: skip
    for kill in range(4):
        environment = {**os.environ, "NEMOTRON_HOME": str(tmp_path / f"killed{kill}")}
        shards = tmp_path / f"killed{kill}" / "runs"
        process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(shards.glob("*/checkpoints/shards/0*"))) < kill:
            time.sleep(0.002)
        with suppress(ProcessLookupError):  # it may have ended before
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        made = prepare(tmp_path / f"killed{kill}", corpus, *SMALL_SHARDS, f"run.home={tmp_path / f'killed{kill}'}")
        assert made.manifest.digest == whole.manifest.digest


def test_a_blend_names_its_data_sets(tmp_path: Path) -> None:
    for name in ("web", "books"):
        (tmp_path / f"{name}.jsonl").write_text('{"body": "x"}\n')
    blend = tmp_path / "blend.json"
    blend.write_text(json.dumps({"datasets": [
        {"name": "web", "path": "web.jsonl", "weight": 3, "text_field": "body"},
        {"name": "books", "path": "books.jsonl"},
    ]}))  # fmt: skip
    parts = ROWS.parts(settings(f"data_prep.source={blend}"))
    assert [(part.name, part.weight, part.settings.text_field) for part in parts] == [
        ("web", 3.0, "body"),
        ("books", 1.0, "text"),
    ]
    assert find_blend(str(tmp_path / "web.jsonl"), CONFIG) is None


def test_shards_of_a_data_set_share_its_weight(tmp_path: Path, home: Path, corpus: Path) -> None:
    write_lines(tmp_path / "small.jsonl", [{"text": f"row {n}"} for n in range(200)])
    blend = tmp_path / "blend.json"
    entries = [{"name": "large", "path": "corpus.jsonl", "weight": 3}, {"name": "small", "path": "small.jsonl"}]
    blend.write_text(json.dumps({"datasets": entries}))
    made = prepare(home, blend, "data_prep.shard_mb=1")
    train = read_blend(made.path / "blend.json")["train"]
    large = [(weight, prefix) for weight, prefix in train if prefix.parent.name == "large"]
    assert len(large) > 1
    assert sum(weight for weight, _ in large) == pytest.approx(3)
    per_token = [weight / IndexedDataset(prefix).num_tokens for weight, prefix in large]
    assert per_token == pytest.approx([per_token[0]] * len(large)), "each token of a data set weighs the same"
    shares = {row["name"]: row["realised_share"] for row in stats(made)["weights"]["train"]}
    assert shares == pytest.approx({"large": 0.75, "small": 0.25})


def test_a_blend_can_say_which_split_is_which(tmp_path: Path, home: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "for training"}])
    write_lines(tmp_path / "b.jsonl", [{"text": "held out"}])
    blend = tmp_path / "blend.json"
    train, valid = {"name": "a", "path": "a.jsonl"}, {"name": "b", "path": "b.jsonl"}
    blend.write_text(json.dumps({"train": [train], "valid": [valid], "test": []}))
    made = prepare(home, blend)
    assert (texts_in(made, "train"), texts_in(made, "valid")) == (["for training"], ["held out"])


def test_long_documents_are_cut_and_counted(tmp_path: Path, home: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": "one two three four five six"}, {"text": "a"}])
    made = prepare(home, source, "data_prep.max_doc_tokens=3", ALL_IN_TRAIN)
    assert stats(made)["counts"]["cut"] == {"longer than data_prep.max_doc_tokens": 1}
    assert IndexedDataset(made.path / "train" / "documents" / "shard_000000").lengths.tolist() == [4, 2]


def test_ids_around_documents() -> None:
    ids, lengths = np.array([7, 8, 9], "u4"), np.array([2, 0, 1])
    framed, whole = with_boundaries(ids, lengths, Vocabulary(100, (1,), (2,)))
    assert framed.tolist() == [1, 7, 8, 2, 1, 2, 1, 9, 2]
    assert whole.tolist() == [4, 2, 3]
    assert with_boundaries(ids, lengths, Vocabulary(100, (), ()))[0] is ids


def test_what_the_post_processor_puts_around_texts(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = provide_tokenizer("tiny", tmp_path / "tokenizer")
    ids = folder.special_ids()
    begin, end = ids["bos_token"], ids["eos_token"]
    folder.tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    # a soft hyphen alone is a text, but makes no token
    folder.tokenizer.normalizer = normalizers.Replace("\u00ad", "")
    folder.tokenizer.save(str(folder.path / "tokenizer.json"))
    texts = [*ODD, "\u00ad", "the last"]
    source = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    model = f"data_prep.tokenizer.model={folder.path}"

    as_others = "data_prep.control_tokens=allow"
    model_too = [model, "data_prep.max_lost=1"]
    made = prepare(home, source, *model_too, ALL_IN_TRAIN, as_others)
    # `encode` with the post-processor, as transformers and with it Megatron-LM call it
    expected = [[*folder.tokenizer.encode(text).ids, end] for text in texts if text != "\u00ad"]
    written = IndexedDataset(made.path / "train" / "documents" / "shard_000000")
    assert [written[index].tolist() for index in range(len(written))] == expected
    assert stats(made)["around_documents"] == {"before": [begin], "after": [end]}
    assert stats(made)["counts"]["rejected"] == {"empty text": 1}
    said = capsys.readouterr().err
    assert "puts <s> before a text and nothing behind it; documents begin with <s> and end with <" in said
    assert "empty text" in said

    without = prepare(home, source, *model_too, ALL_IN_TRAIN, as_others, "data_prep.tokenizer.add_bos=false")
    written = IndexedDataset(without.path / "train" / "documents" / "shard_000000")
    assert [written[index].tolist() for index in range(len(written))] == [ids[1:] for ids in expected]
    assert "documents begin with nothing" in capsys.readouterr().err


def test_text_can_be_made_of_several_fields() -> None:
    row = Row({"question": "2+2?", "answer": "4", "nothing": None}, "f", 1)
    assert text_of(row, settings("data_prep.text_template='{question} {answer}'")) == "2+2? 4"
    for template, said in (
        ("{missing}", "no field 'missing'"),
        ("{nothing}", "no field 'nothing'"),
        ("{0}", "not fit"),
    ):
        with pytest.raises(Refused, match=said):
            text_of(row, settings(f"data_prep.text_template='{template}'"))


@pytest.mark.parametrize("text", ["A goat.", "12", "1.50", '{"a": 1}'])
def test_a_text_in_a_column_of_json_is_a_text(tmp_path: Path, text: str) -> None:
    column = pa.array([json.dumps(text) if text == "A goat." else text], pa.json_())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    (row,) = read_files([local_file(tmp_path / "a.parquet")])
    assert isinstance(row, Row)
    assert text_of(row, settings()) == text
    assert text_of(row, settings("data_prep.text_template='<{text}>'")) == f"<{text}>"


def test_rows_are_counted_by_the_reason_why_they_are_not_used(tmp_path: Path, home: Path) -> None:
    values = [{"text": "good enough"}, {"text": ""}, {"text": None}, {"body": "x"}, {"text": 3}, {"text": "bad"}]
    source = write_lines(tmp_path / "f.jsonl", values)
    source.write_text(source.read_text() + "{broken\n\n")
    made = prepare(home, source, "data_prep.on_bad_row=reject", "data_prep.min_doc_chars=5", ALL_IN_TRAIN,
                   "data_prep.max_lost=1")  # fmt: skip
    assert texts_in(made, "train") == ["good enough"]
    assert [entry["line"] for entry in rejected(made)] == [2, 3, 4, 5, 6, 7]
    counts = stats(made)["counts"]
    assert counts["rows"] == 7 == 1 + sum(counts["rejected"].values())
    assert counts["blank lines"] == 1
    assert counts["rejected"] == {
        "empty text": 1,
        "no field 'text'": 2,
        "the text is not a string": 1,
        "shorter than data_prep.min_doc_chars": 1,
        "malformed JSON": 1,
    }


def test_a_bad_row_stops_with_its_place(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lines(tmp_path / "f.jsonl", [{"text": "fine"}, {"body": "x"}])
    prepare(home, source, expect=2)
    said = capsys.readouterr().err
    assert "f.jsonl:2: no field 'text'" in said
    assert "data_prep.text_field" in said


def test_sample_takes_the_first_rows(tmp_path: Path, home: Path, corpus: Path) -> None:
    made = prepare(home, corpus, "--sample", "7", ALL_IN_TRAIN)
    first = [json.loads(line)["text"] for line in corpus.read_text().splitlines()[:7]]
    assert texts_in(made, "train") == first
