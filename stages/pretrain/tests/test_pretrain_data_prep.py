"""From text to token shards."""

import json
from collections import Counter
from pathlib import Path

import pytest

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.data.indexed_dataset import IndexedDataset
from nemotron_shared.data.rejects import Rejects
from nemotron_shared.data.sources import Row
from nemotron_shared.data.tokenizer_folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.errors import UserError
from stages.pretrain.data_prep import Part, _documents, blend_file, parts_of, text_of, write_part
from stages.pretrain.schema import PretrainConfig, PretrainData

CONFIG = Path(__file__).parent.parent / "config"
TEXTS = ["Mira lives in Oster.", "Grüße, 世界! 🙂", "a\nb\r\nc", "fifty" + " " * 50 + "spaces"] + [
    f"row {n}" for n in range(40)
]


def settings(*overrides: str) -> PretrainData:
    values = resolve(compose(CONFIG, "tiny", overrides).tree, lambda role, field: None)
    return PretrainConfig.model_validate(values).data_prep


@pytest.fixture
def tokenizer(tmp_path: Path) -> TokenizerFolder:
    return provide_tokenizer("tiny", tmp_path / "tokenizer")


def test_every_document_comes_back_whole_with_its_end(tmp_path: Path, tokenizer: TokenizerFolder) -> None:
    chosen = settings("data_prep.split={train: 0.6, valid: 0.2, test: 0.2}")
    documents = [(text, text) for text in TEXTS]
    stats = write_part(Part("web", 1.0, chosen), documents, tokenizer, tmp_path, Counter())
    end = tokenizer.special_id("eos_token")
    found = []
    for split in stats:
        dataset = IndexedDataset(tmp_path / split / "web")
        for index in range(len(dataset)):
            assert dataset[index][-1] == end
            found.append(tokenizer.tokenizer.decode(dataset[index][:-1].tolist(), skip_special_tokens=False))
    assert sorted(found) == sorted(TEXTS)
    assert set(stats) == {"train", "valid", "test"}
    assert sum(split.documents for split in stats.values()) == len(TEXTS)


def test_a_blend_names_its_data_sets(tmp_path: Path) -> None:
    for name in ("web", "books"):
        (tmp_path / f"{name}.jsonl").write_text('{"body": "x"}\n')
    blend = tmp_path / "blend.json"
    blend.write_text(json.dumps({"datasets": [
        {"name": "web", "path": "web.jsonl", "weight": 3, "text_field": "body"},
        {"name": "books", "path": "books.jsonl"},
    ]}))  # fmt: skip
    parts = parts_of(settings(f"data_prep.source={blend}"))
    assert [(part.name, part.weight, part.settings.text_field) for part in parts] == [
        ("web", 3.0, "body"),
        ("books", 1.0, "text"),
    ]
    assert blend_file(settings(f"data_prep.source={tmp_path / 'web.jsonl'}")) is None


def test_a_blend_can_say_which_split_is_which(tmp_path: Path, tokenizer: TokenizerFolder) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    blend = tmp_path / "blend.json"
    entry = {"name": "a", "path": "a.jsonl"}
    blend.write_text(json.dumps({"train": [entry], "valid": [entry], "test": []}))
    parts = parts_of(settings(f"data_prep.source={blend}"))
    assert [part.only for part in parts] == ["train", "valid"]
    stats = write_part(parts[1], [("k", "x")], tokenizer, tmp_path, Counter())
    assert list(stats) == ["valid"]


def test_long_documents_are_cut_and_counted(tmp_path: Path, tokenizer: TokenizerFolder) -> None:
    counts: Counter[str] = Counter()
    chosen = settings("data_prep.max_doc_tokens=3", "data_prep.split={train: 1, valid: 0, test: 0}")
    documents = [("k", "one two three four five six"), ("k", "a")]
    write_part(Part("web", 1.0, chosen), documents, tokenizer, tmp_path, counts)
    assert counts["cut to max_doc_tokens"] == 1
    assert IndexedDataset(tmp_path / "train" / "web").lengths.tolist() == [4, 2]


def test_text_can_be_made_of_several_fields() -> None:
    row = Row({"question": "2+2?", "answer": "4"}, "f", 1)
    assert text_of(row, settings("data_prep.text_template='{question} {answer}'")) == "2+2? 4"
    assert text_of(row, settings("data_prep.text_template='{missing}'")) is None


def test_rows_are_counted_by_the_reason_why_they_are_not_used(tmp_path: Path) -> None:
    values = [{"text": "good enough"}, {"text": ""}, {"text": None}, {"body": "x"}, {"text": 3}, {"text": "bad"}]
    rows = [Row(value, "f.jsonl", number) for number, value in enumerate(values, start=1)]
    chosen = settings("data_prep.on_bad_row=reject", "data_prep.min_doc_chars=5")
    counts: Counter[str] = Counter()
    with Rejects(tmp_path / "rejected.jsonl") as rejects:
        kept = list(_documents(rows, chosen, rejects, counts))
    assert [text for _, text in kept] == ["good enough"]
    lines = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [2, 3, 4, 5, 6]
    assert counts["rows"] == 6 == len(kept) + rejects.total


def test_a_bad_row_stops_with_its_place(tmp_path: Path) -> None:
    with Rejects(tmp_path / "rejected.jsonl") as rejects, pytest.raises(UserError, match=r"f\.jsonl:1"):
        list(_documents([Row({"body": "x"}, "f.jsonl", 1)], settings(), rejects, Counter()))
