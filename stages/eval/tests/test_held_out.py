"""The task of the rows that a model's own data held back."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed_support import pack_row

from nemotron_data.formats.eval_tasks import problem_of, write_tasks
from nemotron_data.formats.packed import COLUMNS, SCHEMA
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.tiny import save_tokenizer
from stages.eval.engines.lm_eval.ask import _calls, is_right
from stages.eval.held_out import HELD_BACK, READERS, call_rows
from stages.eval.scoring import compare, score

TALK = ("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "4<|im_end|>")


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Path, TokenizerFolder]:
    """Data of one conversation with two answers and one with one, in a validation split alone."""
    save_tokenizer(tmp_path / "tokenizer")
    folder = TokenizerFolder(tmp_path / "tokenizer")
    asked, answered = (folder.tokenizer.encode(text, add_special_tokens=False).ids for text in TALK)
    one = (asked + answered, [0] * len(asked) + [1] * len(answered))
    two = (one[0] * 2, one[1] * 2)
    row = pack_row([two, one])
    columns = {name: [getattr(row, name).tolist()] for name in COLUMNS}
    pq.write_table(pa.table(columns, schema=SCHEMA), tmp_path / "valid.parquet")
    return tmp_path, folder


def test_the_last_answer_of_each_conversation_is_asked_for_after_all_that_leads_to_it(prepared) -> None:
    folder, tokenizer = prepared
    kind, splits_of, rows_of = READERS["SFTDataArtifact"]
    assert (kind, splits_of(folder)) == ("answer", ["valid"])
    assert HELD_BACK == ("test", "valid")
    two, one = rows_of(folder, "valid", tokenizer.tokenizer)
    assert one["question"] == TALK[0]
    assert two["question"] == "".join(TALK) + TALK[0]
    assert one["expected"] == two["expected"] == "4"
    for row in (one, two):
        assert tokenizer.tokenizer.decode(row["answer_ids"], skip_special_tokens=False) == TALK[1]
        assert tokenizer.tokenizer.decode(row["prompt_ids"], skip_special_tokens=False) == row["question"]


def test_answers_are_scored_by_their_bytes() -> None:
    before = [{"id": 0, "bits": 40.0, "bytes": 10}, {"id": 1, "bits": 20.0, "bytes": 10}]
    after = [{"id": 0, "bits": 10.0, "bytes": 10}, {"id": 1, "bits": 10.0, "bytes": 10}]
    assert score("answer", before)["value"] == pytest.approx(3.0)
    assert compare("answer", before, after)["difference"] == pytest.approx(-2.0)


def test_a_sample_of_the_rows_is_spread_over_all_of_them(prepared) -> None:
    folder, tokenizer = prepared
    _, _, rows_of = READERS["SFTDataArtifact"]
    assert [row["question"] for row in rows_of(folder, "valid", tokenizer.tokenizer, every=2)] == [
        "".join(TALK) + TALK[0]
    ]


def test_answers_that_a_rule_applies_to_are_counted() -> None:
    bits = {"bits": 40.0, "bytes": 10}
    rows = [bits | {"id": id_, "right": right} for id_, right in enumerate([True, False, None, True])]
    found = score("answer", [*rows, bits | {"id": 4}])["answers"]
    assert (found["asked"], found["judged"], found["right"]) == (4, 3, 2)
    assert found["ci95"][0] < 2 / 3 < found["ci95"][1]
    assert score("answer", [bits | {"id": 0, "right": None}])["answers"]["ci95"] is None
    assert "answers" not in score("answer", [bits | {"id": 0}])


def test_calls_and_answers_after_results_of_held_out_conversations_are_tasks(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    tokenizer = TokenizerFolder(tmp_path / "tokenizer").tokenizer
    add = {"name": "add", "parameters": {"properties": {"b": {"default": 1}}}}
    parts = [
        (
            f"<|im_start|>system\n{json.dumps(add)}<|im_end|>\n<|im_start|>user\n2+1?<|im_end|>\n<|im_start|>assistant\n",
            0,
        ),
        ('<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call><|im_end|>', 1),
        ("\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n", 0),
        ("3<|im_end|>", 1),
    ]
    ids, learnt = [], []
    for text, is_learnt in parts:
        own = tokenizer.encode(text, add_special_tokens=False).ids
        ids, learnt = ids + own, learnt + [is_learnt] * len(own)
    plain = tokenizer.encode("".join(TALK), add_special_tokens=False).ids
    row = pack_row([(ids, learnt), (plain, [0] * (len(plain) - 2) + [1] * 2)])
    columns = {name: [getattr(row, name).tolist()] for name in COLUMNS}
    pq.write_table(pa.table(columns, schema=SCHEMA), tmp_path / "valid.parquet")
    found = call_rows(tmp_path, "valid", tokenizer, most=5)
    (called,), (after,) = found["calls"], found["after_calls"]
    assert called["calls"] == [{"name": "add", "arguments": {"a": 2}}] and after["calls"] == []
    assert called["question"] == parts[0][0] and called["expected"].startswith("<tool_call>")
    assert after["question"] == "".join(text for text, _ in parts[:3]) and after["expected"] == "3"
    assert [problem_of(one, "call") for one in (called, after)] == [None, None]
    said = '<tool_call>{"arguments": {"b": 1.0, "a": 2}, "name": "add"}</tool_call>'
    assert is_right(called, called["question"], said, bare=False)
    assert not is_right(called, called["question"], said.replace("1.0", "2"), bare=False)
    assert is_right(after, after["question"], "It is 3.", bare=False)
    assert not is_right(after, after["question"], "4", bare=False)
    assert not is_right(after, after["question"], f"3{said}", bare=False)
    read: list[int] = []
    decode = tokenizer.decode

    class Counted:
        def decode(self, *args: Any, **options: Any) -> str:
            read.append(1)
            return decode(*args, **options)

    assert call_rows(tmp_path, "valid", Counted(), most=1) == found  # ty: ignore[invalid-argument-type]
    assert len(read) == 4, "the conversation after it is not looked at"
    assert call_rows(tmp_path, "valid", tokenizer, most=0) == {"calls": [], "after_calls": []}


def test_calls_are_asked_for_as_often_as_the_settings_say(tmp_path: Path) -> None:
    row = {"question": "2+1?", "expected": "3", "calls": [], "tools": [], "prompt_ids": [5], "key": "2+1?"}
    (about,) = write_tasks(tmp_path, {"after_calls": ("call", [row, row])}).values()
    said = ["3", "4", "3", "4", "4", "4"]
    lm: Any = SimpleNamespace(
        ids={}, ends=[], tokenizer=SimpleNamespace(all_special_tokens=[]),
        generate_until=lambda requests: said[: len(requests)],
    )  # fmt: skip
    settings: Any = SimpleNamespace(limit=None, num_samples=3, temperature=0.7, max_new_tokens=4)
    found = _calls(lm, about, settings)
    assert [(one["score"], one["outputs"]) for one in found] == [(pytest.approx(2 / 3), said[:3]), (0.0, said[3:])]
    settings.num_samples = 1
    assert [(one["score"], one["output"]) for one in _calls(lm, about, settings)] == [(1.0, "3"), (0.0, "4")]
