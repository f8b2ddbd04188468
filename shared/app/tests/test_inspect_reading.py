"""How prepared sets are read for people: tokens as visible text, the mask where it counts, samples that are fair."""

import json
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_support import add_document, pack_row, write_packed

from nemotron_app.charts import fill_histogram, histogram, quantile
from nemotron_app.inspect.find import read_refused
from nemotron_app.inspect.measure import Copies, Decoder, digest_of_ids, measure, visible
from nemotron_app.inspect.splits import LineSplit, PackedSplit, TokenSequence, blend_splits, row_example
from nemotron_data.formats.bin_idx import IndexedDatasetWriter, data_set_of, write_blend
from nemotron_data.formats.packed import PackedRow, labels_of
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.system.errors import UserError

TOKENS = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1)), min_size=2, max_size=8)
SEQUENCES = st.lists(TOKENS.map(lambda pairs: tuple(map(list, zip(*pairs, strict=True)))), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Decoder:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Decoder(folder)


def encode(decoder: Decoder, text: str) -> np.ndarray:
    return np.array(decoder._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_pieces_put_together_are_the_text_and_the_ids(decoder, text):
    ids = encode(decoder, text)
    pieces = decoder.pieces(TokenSequence(ids), 10_000)
    assert [number for piece in pieces for number in piece.ids] == ids.tolist()
    assert "".join(piece.text for piece in pieces) == text


def test_a_character_over_several_tokens_is_one_piece(decoder):
    pieces = decoder.pieces(TokenSequence(encode(decoder, "a日<|im_end|>")), 100)
    assert [(piece.text, piece.kind) for piece in pieces] == [("a", "text"), ("日", "text"), ("<|im_end|>", "special")]
    assert len(pieces[1].ids) == 3


def test_half_a_character_does_not_swallow_what_follows(decoder):
    ids = encode(decoder, "日")[:2].tolist() + encode(decoder, "<|im_end|>7").tolist()
    pieces = decoder.pieces(TokenSequence(np.array(ids)), 100)
    assert [piece.kind for piece in pieces][-2:] == ["special", "text"] and pieces[-1].text == "7"
    assert [number for piece in pieces for number in piece.ids] == ids


def test_ids_that_no_tokenizer_knows_are_said_to_be_so(decoder):
    pieces = decoder.pieces(TokenSequence(np.array([9_999, -4])), 100)
    assert [(piece.text, piece.kind) for piece in pieces] == [("<id 9999>", "bad"), ("<id -4>", "bad")]
    assert [piece.kind for piece in Decoder(None).pieces(TokenSequence(np.array([7, 8])), 1)] == ["id"]


def test_what_would_hide_or_steer_is_written_out():
    assert visible("a\x1b[31m\u202eb\x00\tc\n", "↵\n") == "a␛[31m\\u202eb␀→\tc↵\n"
    assert visible("naïve 日本語 👩\u200d👧 café") == "naïve 日本語 👩\u200d👧 café"


@settings(max_examples=60, deadline=None)
@given(SEQUENCES)
def test_marked_are_exactly_the_tokens_that_become_labels(sequences):
    row = pack_row(sequences)
    example = row_example("train", 0, row.input_ids, row.loss_mask, row.seq_start_id)
    assert [sequence.ids.tolist() for sequence in example.sequences] == [ids for ids, _ in sequences]
    marked = [token for sequence in example.sequences for token in sequence.ids[sequence.trained].tolist()]
    labels = labels_of(row)
    assert marked == labels[labels != -100].tolist()
    assert example.problem is None


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (PackedRow(np.array([1, 2, 3]), np.array([0, 1, 1]), np.array([0])), "was not shifted"),
        (PackedRow(np.array([1, 2, 3]), np.array([0, 0]), np.array([0])), "mask entries"),
        (PackedRow(np.array([1, 2, 3, 4]), np.array([0, 1, 0, 0]), np.array([2, 0])), "begin with 0"),
        (PackedRow(np.array([], int), np.array([], int), np.array([], int)), "begin with 0"),
    ],
)
def test_a_broken_row_is_shown_with_its_problem(row, problem):
    example = row_example("train", 3, row.input_ids, row.loss_mask, row.seq_start_id)
    assert problem in (example.problem or "")
    assert sum(len(sequence.ids) for sequence in example.sequences) == len(row.input_ids)


def packed_file(tmp_path: Path, rows: int = 10) -> PackedSplit:
    sequences = [([n + 3] * 10, [0] * 5 + [1] * 5) for n in range(rows)]
    write_packed(tmp_path / "train.parquet", sequences, [[n] for n in range(rows)], row_group_size=2)
    return PackedSplit("train", tmp_path / "train.parquet")


def test_packed_rows_are_found_by_number_over_row_groups(tmp_path):
    split = packed_file(tmp_path)
    assert [int(found.sequences[0].ids[0]) for found in split.at([9, 0, 5])] == [12, 3, 8]
    assert [found.index for found in split.scan(1000)] == list(range(10)) and split.sample_note(1000) is None
    assert (split.files[0].examples, split.files[0].tokens) == (10, 100)


def test_a_large_packed_file_is_sampled_evenly_within_the_budget(tmp_path):
    split = packed_file(tmp_path)
    assert [found.index for found in split.scan(60)] == [0, 1, 4, 5, 8, 9]
    assert split.sample_note(60) == "the first rows of 3 of 5 row groups"
    assert len(list(split.scan(1))) == 1


def corpus(tmp_path: Path, parts: dict[str, list[list[int]]], weights: dict[str, float]) -> Path:
    blend: dict[str, list] = {}
    for name, documents in parts.items():
        with IndexedDatasetWriter(tmp_path / name, 70_000 if "code" in name else 512) as writer:
            for ids in documents:
                add_document(writer, np.array(ids))
        blend.setdefault(name.split("/")[0], []).append((weights[name], name))
    write_blend(tmp_path / "blend.json", blend)
    return tmp_path / "blend.json"


def test_documents_are_found_by_number_over_shards_and_data_sets(tmp_path):
    parts = {
        "train/web/shard_000000": [[1, 2], [3]],
        "train/web/shard_000001": [[4] * 5],
        "train/code/shard_000000": [[6]],
    }
    train, = blend_splits(corpus(tmp_path, parts, dict.fromkeys(parts, 0.5)))  # fmt: skip
    assert [found.sequences[0].ids.tolist() for found in train.at([3, 0, 2])] == [[6], [1, 2], [4] * 5]
    assert train.at([2])[0].place == "train/web/shard_000001, document 0"
    assert [part.data_set for part in train.files] == ["web", "web", "code"]
    assert train.lengths() == Counter({1: 2, 2: 1, 5: 1}) and train.examples == 4
    assert digest_of_ids(np.array([6], "<u2")) == digest_of_ids(np.array([6], "<i4"))


def test_data_sets_are_named_by_their_folder():
    assert data_set_of("train/web", "train") == "web"
    assert data_set_of("train/a/b/shard_000002", "train") == "a/b"
    assert data_set_of("train/shard_000000", "train") == "shard_000000"


def test_a_sample_of_documents_keeps_equal_ones_together(tmp_path):
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 500, rng.integers(5, 60)).tolist() for _ in range(300)]
    train, = blend_splits(corpus(tmp_path, {"train/web": documents * 2}, {"train/web": 1.0}))  # fmt: skip
    seen = Counter(found.sequences[0].ids.tobytes() for found in train.scan(4_000))
    assert 20 < seen.total() < 400 and train.sample_note(4_000)
    assert sum(count == 2 for count in seen.values()) > 0.7 * len(seen)
    assert max(len(found.sequences[0].ids) for found in train.scan(4_000)) > 40  # not the short ones only
    assert len(list(train.scan(10**9))) == 600 and train.sample_note(10**9) is None


def lines_file(tmp_path: Path, lines: list[str]) -> LineSplit:
    (tmp_path / "val.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return LineSplit("valid", tmp_path / "val.jsonl")


def rl(asked, **more) -> str:
    return json.dumps({"responses_create_params": {"input": asked}, **more})


def test_rows_of_every_form_show_question_answer_and_agent(tmp_path):
    parts = [{"type": "input_text", "text": "2+"}, {"type": "input_text", "text": "2?"}]
    split = lines_file(tmp_path, [
        rl([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], expected_answer="4",
           agent_ref={"type": "responses_api_agents", "name": "math"}, question="2+2?"),
        rl([{"role": "user", "content": parts}], expected_answer=4),
        "", rl("2+2?", expected_answer="4"), json.dumps({"question": "Q?", "expected": "A", "key": "k"}),
        json.dumps({"question": "Whose?", "choices": ["a", "b"], "key": "subject"}),
    ])  # fmt: skip
    first, second, third, fourth, _ = split.scan(10**6)
    assert (first.turns[0], first.question, first.agent) == (("system", "Be brief."), "2+2?", "math")
    assert list(first.facts) == [("expected answer", "4"), ("agent", "math")]
    assert (second.question, third.question) == ("2+\n2?", "2+2?") and third.place == "val.jsonl, line 4"
    assert [found.problem for found in (first, second, third, fourth)] == [None] * 4
    assert split.keys() == ["2+2?", "2+\n2?", "2+2?", "k", "Whose?"]


def test_pairs_show_and_measure_texts_and_not_their_messages(tmp_path: Path) -> None:
    pair = {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "chosen": [{"role": "assistant", "reasoning_content": "Two.", "content": "4"}],
        "rejected": [{"role": "assistant", "content": "five"}],
    }
    (example,) = (split := lines_file(tmp_path, [json.dumps(pair)])).scan(1000)
    assert (example.question, example.turns) == ("2+2?", [("user", "2+2?")])
    assert example.facts == [("chosen", "Two.\n4"), ("rejected", "five")]
    measured = measure(split, 1000, None, Copies(Decoder(None)))
    assert measured.lengths == {4: 1}
    assert measured.answers == {"chosen": {6: 1}, "rejected": {4: 1}}


def test_rows_that_cannot_be_used_say_why(tmp_path):
    split = lines_file(tmp_path, [
        '{"cut', "[1]", rl([]), rl("x"), json.dumps({"_hf_placeholder": {"row": 1}}), rl([7, {"role": "user"}]),
    ])  # fmt: skip
    problems = [found.problem for found in split.scan(10**6)]
    assert problems == [
        "not a JSON object", "not a JSON object", "no user turn", "no expected answer",
        "a placeholder that was not resolved", "a turn is not an object",
    ]  # fmt: skip


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_never_ends_is_no_file_of_rows(tmp_path: Path, put) -> None:
    put(tmp_path / "train.jsonl")
    with pytest.raises(UserError, match=r"train\.jsonl: not a regular file"):
        LineSplit("train", tmp_path / "train.jsonl")


def test_a_large_file_of_rows_is_read_with_a_stride(tmp_path):
    split = lines_file(tmp_path, [rl(f"question {n}") for n in range(100)])
    seen = [found.index for found in split.scan(300)]
    assert seen == list(range(0, 100, seen[1])) and 1 < seen[1] < 20
    assert split.sample_note(300) == f"one row in {seen[1]}"
    assert [found.question for found in split.at([99, 3])] == ["question 99", "question 3"]


@given(st.dictionaries(st.integers(0, 100_000), st.integers(1, 50), min_size=1, max_size=40))
def test_histograms_lose_nothing_and_their_bins_touch(counts):
    bins = histogram(Counter(counts))
    assert sum(found.count for found in bins) == sum(counts.values())
    assert all(left.high + 1 == right.low for left, right in pairwise(bins))
    assert bins[0].low <= min(counts) and bins[-1].high >= max(counts) and len(bins) <= 40
    for found in bins:
        assert found.count == sum(n for value, n in counts.items() if found.low <= value <= found.high)


@pytest.mark.parametrize(("percent", "last"), [(100, (90, 100, 5)), (140, (101, 140, 1))])
def test_fill_over_the_pack_size_has_a_bin_of_its_own(percent, last):
    found = fill_histogram(Counter({93: 4, percent: 1}))[-1]
    assert (found.low, found.high, found.count) == last


def test_quantiles_are_values_that_occur():
    values = Counter({3: 1, 5: 1, 900: 2})
    assert [quantile(values, share) for share in (0, 0.5, 0.51, 1)] == [3, 5, 900, 900]
    assert quantile(Counter(), 0.5) == 0


@pytest.mark.parametrize("line", ["{", "[]", "1" * 10_000, "[" * 100_000])
def test_a_damaged_refused_row_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "rejected.jsonl").write_text(f"{line}\n")
    with pytest.raises(UserError, match=r"rejected\.jsonl:1: not a refused row"):
        read_refused(tmp_path / "rejected.jsonl")
