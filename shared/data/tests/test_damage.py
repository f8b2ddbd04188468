"""Files and rows as they come from people: each fault is one clear error or a counted loss, none is silent."""

import gzip
import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prep_support import setting

from nemotron_data.chat.formats import CHAT_FORMATS, messages_of
from nemotron_data.chat.rows import validate_messages
from nemotron_data.prep.losses import Totals, finish
from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.reader import ShardReader
from nemotron_data.prep.shards import run_shards
from nemotron_data.sources.detect import detect_files
from nemotron_data.sources.files import expand
from nemotron_data.sources.json_rows import RepeatedKey, parse_json, repeated_key
from nemotron_shared.system.errors import UserError

GOOD = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


class Chats:
    """As fine-tuning reads rows, without a tokenizer."""

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        for row in reader:
            try:
                reason = validate_messages(messages_of(row.value))
            except UserError as error:
                reason = error.message.partition(":")[0].partition(";")[0]
            if reason:
                reader.refuse(row, reason.partition(":")[0])
        return {}


def prepare(tmp_path: Path, file: Path) -> Totals:
    shards = make_shards([expand([file])], 1 << 20)
    directory = tmp_path / "shards"
    return finish(directory, shards, run_shards(shards, Chats(), setting(directory)), tmp_path / "rejected.jsonl")


def lines(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def turns(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.jsonl", lines(GOOD))
    return made.getvalue()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), made)
    return made.getvalue()


def twice_named() -> bytes:
    made = io.BytesIO()
    columns = [pa.array(["q"]), pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.table(columns, names=["question", "answer", "answer"]), made)
    return made.getvalue()


# name of the file, content, what the error says
FILES = {
    "empty": ("a.jsonl", b"", "holds no rows"),
    "blank lines alone": ("a.jsonl", b"\n  \n\n", "holds no rows"),
    "empty CSV": ("a.csv", b"", "holds no rows"),
    "a header alone": ("a.csv", b"question,answer\n", "holds no rows"),
    "an empty list": ("a.json", b"[]", "holds no rows"),
    "a list cut short": ("a.json", json.dumps([GOOD] * 5, indent=1).encode()[:-200], "malformed JSON: .*cut short"),
    "a list with a fault": ("a.json", b'[{"a": 1},\n{"a": nan}]', "a.json:2: malformed JSON"),
    "two lists": ("a.json", json.dumps({"train": [GOOD], "test": [GOOD]}, indent=1).encode(), "two lists of objects"),
    "a list of too many brackets": ("a.json", b"[" * 5000, "malformed JSON: too many brackets"),
    "a number as a name": ("a.json", b"{\n" + b"1" * 5000 + b': 1, "data": [{}]}', "a.json:2: malformed JSON"),
    "text after a list": ("a.json", b'[{"a": 1}] and more', "after the end"),
    "one row in many lines": ("a.jsonl", json.dumps(GOOD, indent=2).encode(), "one row in many lines"),
    "rows in many lines": ("a.jsonl", b'{\n "a": 1\n}\n{\n "a": 2\n}\n', "without a list of rows"),
    "no list in it": ("a.json", b'{\n"a": 1\n}', "without a list of rows"),
    "a zip by another name": ("a.jsonl", zipped(), "a zip archive, not .jsonl"),
    "gzip by another name": ("a.jsonl", gzip.compress(lines(GOOD)), "compressed by gzip"),
    "a broken gzip": ("a.jsonl.gz", gzip.compress(lines(*[GOOD] * 50))[:-20], "cut short"),
    "no gzip at all": ("a.jsonl.gz", lines(GOOD), "cannot be decompressed"),
    "Parquet cut in half": ("a.parquet", parquet([GOOD] * 50)[:400], "not a readable Parquet file"),
    "a header twice": ("a.csv", b"question,answer,answer\nq,a,b\n", "the header has answer twice"),
    "a nameless column": ("a.csv", b"question,answer,,\nq,a,,\n", "the header has"),
    "an open quotation mark": ("a.csv", b'question,answer\nq,"a\nq,b\n', "a.csv:2: not a readable table"),
    "a quotation mark left open in a header": ("a.csv", b'"question,answer\nq,b\n', "a.csv:1: not a readable header"),
    "a CSV in Latin-1": ("a.csv", "question,answer\né,è\n".encode("latin1"), "byte 16 of it is 0xe9"),
    "UTF-16 without its mark": ("a.jsonl", lines(GOOD).decode().encode("utf-16-le"), "perhaps UTF-16-LE"),
    "a spreadsheet": ("a.xlsx", zipped(), "a spreadsheet cannot be read"),
    "columns of one name": ("a.parquet", twice_named(), "has the column answer twice"),
    "a PDF": ("a.txt", b"%PDF-1.7 ...", "a PDF, not .txt"),
}
# content of a.jsonl after a good row, the reason by which it is counted
ROWS = {
    "truncated JSON": (b'{"messages": [{"role": "us', "malformed JSON"),
    "a zero byte": (b'{"messages": "\x00"}', "malformed JSON"),
    "bytes of Latin-1": ('{"prompt": "é", "response": "è"}'.encode("latin1"), "invalid UTF-8"),
    "a list": ([1, 2], "not a JSON object"),
    "no messages": ({"messages": []}, "no messages"),
    "messages of null": ({"messages": None}, "messages is not a list of objects"),
    "lists in lists": ({"messages": [[GOOD["messages"][0]]]}, "messages is not a list of objects"),
    "system alone": (turns(("system", "s")), "no assistant turn"),
    "an unknown role": (turns(("robot", "x"), ("assistant", "y")), "unknown role"),
    "an image": (turns(("user", [{"type": "image_url"}]), ("assistant", "y")), "an image in the content"),
    "a part of sound": (
        turns(("user", [{"type": "audio"}]), ("assistant", "y")),
        "a part that is not text in the content",
    ),
    "true as answer": ({"question": "2+2=4?", "answer": True}, "field 'answer' is not text"),
    "a number as content": (turns(("user", "2+2?"), ("assistant", 4)), "content is not a string"),
    "an answer of null": ({"question": "2+2?", "answer": None}, "no answer"),
    "an empty answer": ({"instruction": "Add.", "output": ""}, "no answer"),
    "an empty question": ({"question": " ", "answer": "4"}, "no question"),
    "no answer": ({"question": "2+2?"}, "no known chat format"),
    "a document": ({"text": "Once upon a time"}, "a document, not a chat"),
    "two formats at once": (
        {"prompt": "a", "response": "b", "question": "c", "answer": "d"},
        "several chat formats fit",
    ),
    "a call that is no JSON": (
        {"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "f("}]},
        "malformed tool call",
    ),
    "a call of too many brackets": (
        {"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "[" * 5000}]},
        "malformed tool call",
    ),
    "messages of too many brackets": ({"messages": "[" * 5000}, "messages is not a list of objects"),
    "an answer to no call": (
        {"conversations": [{"from": "observation", "value": "3"}, {"from": "gpt", "value": "y"}]},
        "tool message without a tool call",
    ),
}


@pytest.mark.parametrize("damage", FILES)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    name, content, message = FILES[damage]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        prepare(tmp_path, tmp_path / name)
    assert name in str(caught.value) and caught.value.remedy
    if name != "a.xlsx" and "parquet" not in name.lower() and not name.endswith("txt"):
        with pytest.raises(UserError) as caught:
            detect_files(expand([tmp_path / name]))
        assert "data_prep.format" not in str(caught.value.remedy)


@pytest.mark.parametrize("damage", ROWS)
def test_a_damaged_row_is_counted_by_its_reason(tmp_path: Path, damage: str) -> None:
    row, reason = ROWS[damage]
    (tmp_path / "a.jsonl").write_bytes(lines(GOOD, row, GOOD))
    totals = prepare(tmp_path, tmp_path / "a.jsonl")
    assert totals.rejected == {reason: 1}
    assert totals.counts["rows"] == 3
    assert totals.examples[reason].endswith("a.jsonl:2")
    assert f"1 dropped (33.3%: 1 {reason})" in totals.account()


@pytest.mark.parametrize(("name", "form"), [("a.jsonl", "{0}\n{1}\n{0}\n"), ("a.json", "[{0},\n{1},\n{0}]")])
@pytest.mark.parametrize("row", ['{"prompt": "a", "prompt": "b"}', '{"messages": [{"role": "user", "role": "x"}]}'])
def test_a_key_twice_is_a_bad_row(tmp_path: Path, name: str, form: str, row: str) -> None:
    (tmp_path / name).write_text(form.format(json.dumps(GOOD), row))
    totals = prepare(tmp_path, tmp_path / name)
    assert totals.rejected == {"a key twice": 1}
    assert totals.examples["a key twice"].endswith(f"{name}:2")


def test_a_key_twice_is_found_in_any_row(tmp_path: Path) -> None:
    bad = b'{"question": "a", "question": "b", "answer": "c"}'
    (tmp_path / "a.jsonl").write_bytes(lines(*[GOOD] * 500, bad))
    assert prepare(tmp_path, tmp_path / "a.jsonl").rejected == {"a key twice": 1}


@pytest.mark.parametrize("begin", ["[", '{"version": 1, "data": ['])
def test_a_number_beyond_measure_spoils_only_its_row_of_a_list(tmp_path: Path, begin: str) -> None:
    row = json.dumps(GOOD)
    long = f'{{"id": {"1" * 5000}}}'
    (tmp_path / "a.json").write_text(f"{begin}{row},\n{long},\n{row}]{'}' * (begin != '[')}")
    totals = prepare(tmp_path, tmp_path / "a.json")
    assert (totals.rejected, totals.counts["rows"]) == ({"malformed JSON": 1}, 3)
    assert totals.examples["malformed JSON"].endswith("a.json:2")


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("a.csv", b"question,answer\n1,2,3\n4\n", "as many cells as the header"),
        ("a.jsonl", b'{"a": 1}\r{"a": 2}\r', "end each line with a newline"),
        ("a.jsonl", b'{"a": 1\n{"a"\n', "correct the file"),
    ],
)
def test_where_no_row_can_be_read_the_remedy_tells_what_to_correct(
    tmp_path: Path, name: str, content: bytes, remedy: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}:[12]: ") as caught:
        detect_files(expand([tmp_path / name]))
    assert remedy in str(caught.value.remedy) and "data_prep.format" not in str(caught.value.remedy)


def test_blank_lines_above_a_header_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n \nquestion,answer\n1,2\nonly one\n")
    totals = prepare(tmp_path, tmp_path / "a.csv")
    assert (totals.rejected, totals.counts["rows"]) == ({"ragged row": 1}, 2)
    assert totals.examples["ragged row"].endswith("a.csv:5")


def test_ragged_rows_of_a_table_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer\n1,2\nonly one\n\n3,4,5\n6,7\n")
    totals = prepare(tmp_path, tmp_path / "a.csv")
    assert (totals.rejected, totals.counts["rows"]) == ({"ragged row": 2}, 4)
    assert totals.examples["ragged row"].endswith("a.csv:3")


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b"question,answer\n2\0+2?,4\n1,2\n"), ("a.txt", b"Once\0 upon a time")]
)
def test_zero_bytes_in_a_text_are_counted(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert prepare(tmp_path, tmp_path / name).rejected == {"zero bytes": 1}


def test_a_folder_with_the_name_of_a_file_is_read_as_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x.jsonl"
    folder.mkdir()
    with pytest.raises(UserError, match="an empty folder"):
        expand([folder])
    (folder / "a.jsonl").write_bytes(lines(GOOD))
    assert prepare(tmp_path, folder).counts["rows"] == 1


def test_a_dead_link_and_a_name_that_begins_with_a_tilde_are_told_as_they_are(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "dead.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(UserError, match=r"dead\.jsonl: a link that leads nowhere"):
        expand([tmp_path / "dead.jsonl"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~nobody.jsonl").write_bytes(lines(GOOD))
    assert [file.path for file in expand(["~nobody.jsonl"])] == ["~nobody.jsonl"]


def test_a_pipe_is_told_as_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for named in (tmp_path / "pipe.jsonl", tmp_path):
        with pytest.raises(UserError, match=r"pipe\.jsonl: not a regular file"):
            expand([named])


def test_mixed_formats_are_told_and_read_row_by_row(tmp_path: Path) -> None:
    pair = {"instruction": "Add.", "input": "2+2", "output": "4"}
    (tmp_path / "a.jsonl").write_bytes(lines(GOOD, pair, GOOD))
    found = detect_files(expand([tmp_path / "a.jsonl"]))
    assert (found.format, "2 of messages and 1 of alpaca" in found.reason) == ("auto", True)
    assert prepare(tmp_path, tmp_path / "a.jsonl").rejected == {}


def test_an_unknown_shape_lists_what_it_has_and_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"frage": "2+2?", "antwort": "4"}))
    with pytest.raises(UserError) as caught:
        detect_files(expand([tmp_path / "a.jsonl"]))
    assert "it has the fields frage, antwort" in str(caught.value)
    assert all(name in str(caught.value) for name in CHAT_FORMATS)


@pytest.mark.parametrize(("lost", "stops"), [(5, False), (6, True)])
def test_more_than_the_allowed_share_stops(lost: int, stops: bool) -> None:
    totals = Totals(Counter(rows=100), Counter({"no assistant turn": lost, "asked for": 50}), asked={"asked for"})
    totals.examples["no assistant turn"] = "chats.jsonl:17"
    if not stops:
        totals.require_few_lost(0.05, {})
        return
    with pytest.raises(UserError) as caught:
        totals.require_few_lost(0.05, {"no assistant turn": "correct them"})
    assert caught.value.exit_code == 1
    assert "6 of 100 rows (6.0%)" in caught.value.message and "chats.jsonl:17" in caught.value.message
    assert caught.value.remedy == "correct them; or allow the loss: data_prep.max_lost=0.07"
    totals.require_few_lost(0.07, {})


def test_cut_rows_are_a_loss_of_their_own() -> None:
    totals = Totals(Counter(rows=100), cut=Counter({"answers cut at data_prep.pack_size": 6}))
    assert totals.account() == (
        "rows: 100 read; 100 kept (100.0%), 6 of them cut (6.0%: 6 answers cut at data_prep.pack_size)"
    )
    with pytest.raises(UserError, match="would be cut"):
        totals.require_few_lost(0.05, {})


def test_the_first_name_that_stands_twice_is_found_among_very_many() -> None:
    names = [f"k{number}" for number in range(300_000)]  # comparing each with all others would take an hour
    row = "{" + ", ".join(f'"{name}": 0' for name in [*names, "late", "later", "later", "late"]) + "}"
    assert repeated_key(row.encode()) == "late"
    assert repeated_key(b'{"a": {"b": 1, "c": 1}, "b": 2}') is None


@pytest.mark.parametrize(
    "twice", ['{"k": "x", "k": "y"}', '{"k": 1, "k": 2}', '[{"k\\"": {}, "k\\"": []}]', '{"": 0, "": 0}']
)
@pytest.mark.parametrize(
    "form", ['{"a": %s}', '{"a": "say \\"hi\\"", "b\\"": [%s, 1e300]}', '{"a": "\\u0022", "b": %s}', "[%s]"]
)
def test_a_key_twice_is_found_whatever_marks_the_row_has(form: str, twice: str) -> None:
    with pytest.raises(RepeatedKey):
        parse_json((form % twice).encode())
    once = (form % "12345678901234567890123").encode()
    assert parse_json(once) == json.loads(once)
