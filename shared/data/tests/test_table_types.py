"""Values of every type that a column of Parquet may have are what somebody wrote, or are named with their column."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemotron_data.chat.formats import messages_of
from nemotron_data.chat.rows import Arguments, to_json, tools_of, validate_messages
from nemotron_data.formats.json_lines import spoken, text_of
from nemotron_data.formats.rl_rows import encode_row
from nemotron_data.sources.datasets import read_question
from nemotron_data.sources.input_file import local_file
from nemotron_data.sources.reading import BadRow, Row, read_files

PLACE, DAY = {"city": "Oslo", "day": "2"}, dt.date(2024, 1, 2)
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5)
TEXT = pa.string()
PART = pa.struct([("a", pa.int8()), ("b", TEXT)])


def extended(kind: pa.BaseExtensionType, storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, storage)


def in_json(*texts: str | None) -> pa.Array:
    return pa.array(texts, pa.json_())


def inside(column: pa.Array, name: str = "a") -> pa.Array:
    return pa.StructArray.from_arrays([column], [name])


def rows_of(tmp_path: Path, **columns: pa.Array) -> list[Row | BadRow]:
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    return list(read_files([local_file(tmp_path / "rows.parquet")]))


TYPES: dict[str, tuple[pa.Array, Any]] = {
    "json object": (in_json('{"a": null, "b": [1, null, 2.5]}'), {"a": None, "b": [1, None, 2.5]}),
    "json text": (in_json('"a\\nb"'), "a\nb"),
    "json null": (in_json("null"), None),
    "no json": (in_json(None), None),
    "json boolean": (in_json("true"), True),
    "json number": (in_json("4"), 4),
    "json of digits": (in_json("1.50"), Decimal("1.50")),
    "json beyond 64 bits": (in_json("12345678901234567890123"), 12345678901234567890123),
    "a text that is no number": (in_json("007"), "007"),
    "nan": (in_json("NaN"), "NaN"),
    "large json": (pa.array(['"a"'], pa.json_(pa.large_string())), "a"),
    "json view": (pa.array(['"a"'], pa.json_(pa.string_view())), "a"),
    "list of json": (pa.ListArray.from_arrays([0, 2], in_json('{"a": 1}', None)), [{"a": 1}, None]),
    "list view of json": (pa.ListViewArray.from_arrays([0], [1], in_json('"a"')), ["a"]),
    "structure of json": (inside(in_json('"x"')), {"a": "x"}),
    "structure of a json null": (inside(in_json("null")), {}),
    "map": (pa.array([list(PLACE.items())], pa.map_(TEXT, TEXT)), PLACE),
    "map with a null": (pa.array([[("a", None)]], pa.map_(TEXT, TEXT)), {"a": None}),
    "map of structures": (
        pa.array([[("a", {"b": 1, "c": None})]], pa.map_(TEXT, pa.struct([("b", pa.int8()), ("c", TEXT)]))),
        {"a": {"b": 1}},
    ),
    "map of numbers": (pa.array([[(1, 0.1)]], pa.map_(pa.int32(), pa.float32())), {"1": 0.1}),
    "map of maps of json": (
        pa.MapArray.from_arrays([0, 1], ["k"], pa.MapArray.from_arrays([0, 1], ["l"], in_json("[1]"))),
        {"k": {"l": [1]}},
    ),
    "list of maps": (pa.array([[[("a", "b")]]], pa.list_(pa.map_(TEXT, TEXT))), [{"a": "b"}]),
    "list view": (pa.array([[{"a": 1, "b": None}]], pa.list_view(PART)), [{"a": 1}]),
    "large list view": (pa.array([[0.1]], pa.large_list_view(pa.float32())), [0.1]),
    "large list": (pa.array([[0.1, None]], pa.large_list(pa.float32())), [0.1, None]),
    "fixed list": (pa.array([[0.1, 0.2]], pa.list_(pa.float32(), 2)), [0.1, 0.2]),
    "dictionary": (pa.array(["a"]).dictionary_encode(), "a"),
    "list of a dictionary": (pa.ListArray.from_arrays([0, 1], pa.array(["a"]).dictionary_encode()), ["a"]),
    "large text": (pa.array(["a"], pa.large_string()), "a"),
    "text view": (pa.array(["a"], pa.string_view()), "a"),
    "half": (pa.array([np.float16(0.1)]), 0.1),
    "nested half": (inside(pa.array([np.float16(0.1)])), {"a": 0.1}),
    "uuid": (extended(pa.uuid(), pa.array([UUID(int=1).bytes], pa.binary(16))), str(UUID(int=1))),
    "bool8": (extended(pa.bool8(), pa.array([1], pa.int8())), True),
    "opaque": (extended(pa.opaque(TEXT, "t", "v"), pa.array(["a"])), "a"),
    "tensor": (
        extended(pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[0.1, 2]], pa.list_(pa.float32(), 2))),
        [0.1, 2.0],
    ),
    "decimal": (pa.array([Decimal("1.50")]), Decimal("1.50")),
    "large decimal": (pa.array([Decimal("1.50")], pa.decimal256(40, 2)), Decimal("1.50")),
    "date": (pa.array([DAY]), DAY),
    "nested date": (inside(pa.array([DAY])), {"a": "2024-01-02"}),
    "nested time": (inside(pa.array([MOMENT.time()])), {"a": "03:04:05"}),
    "nested moment": (inside(pa.array([MOMENT], pa.timestamp("s"))), {"a": "2024-01-02T03:04:05"}),
    "nested moment elsewhere": (
        inside(pa.array([MOMENT], pa.timestamp("ms", "Europe/Oslo"))),
        {"a": "2024-01-02T04:04:05+01:00"},
    ),
    "nested duration": (inside(pa.array([dt.timedelta(days=1, seconds=5)])), {"a": "P1DT5S"}),
    "unsigned": (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
    "bytes": (pa.array([b"a"]), b"a"),
    "nothing": (pa.nulls(1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a_value_is_what_somebody_wrote(tmp_path: Path, name: str) -> None:
    column, wanted = TYPES[name]
    (row,) = rows_of(tmp_path, c=column)
    assert isinstance(row, Row)
    assert (row.value["c"], type(row.value["c"]) is bytes) == (wanted, type(wanted) is bytes)
    assert isinstance(row.value["c"], type(wanted))


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (in_json('"a"', "{", '"c"'), "column 'c' (extension<arrow.json>): "),
        (in_json('"a"', '{"a": 1, "a": 2}', '"c"'), "(extension<arrow.json>): JSON with the key 'a' twice"),
        (inside(pa.array([0, 1, 0], pa.duration("ns"))), "a duration with nanoseconds: 0 days 00:00:00.000000001"),
        (in_json('"a"', "[" * 100_000, '"c"'), "column 'c' (extension<arrow.json>): "),
        (pa.ListArray.from_arrays([0, 1, 2, 3], in_json("1", "x", "2")), "column 'c' (list<element: extension<arrow"),
        (pa.array([[], [("a", "b"), ("a", "c")], []], pa.map_(TEXT, TEXT)), "a map has a key twice"),
        (pa.array([[], [(b"a", "b")], []], pa.map_(pa.binary(), TEXT)), "a map with a key that is not text: b'a'"),
    ],
    ids=["no json", "a key twice", "nanoseconds", "too deep", "inside a list", "a map's key twice", "a map's key"],
)
def test_a_value_without_a_meaning_is_a_bad_row_that_names_its_column(tmp_path: Path, column: Any, why: str) -> None:
    first, bad, last = rows_of(tmp_path, c=column)
    assert isinstance(first, Row) and isinstance(last, Row)
    assert isinstance(bad, BadRow) and (bad.line, bad.why.reason) == (2, "a value that cannot be read")
    assert why in bad.why.detail


def called(arguments: pa.Array) -> pa.Array:
    """Messages that end with a call of these arguments."""
    function = pa.StructArray.from_arrays([pa.array(["weather"]), arguments], ["name", "arguments"])
    calls = pa.ListArray.from_arrays([0, 0, 1], pa.StructArray.from_arrays([function], ["function"]))
    turns = pa.StructArray.from_arrays(
        [pa.array(["user", "assistant"]), pa.array(["Weather?", None]), calls], ["role", "content", "tool_calls"]
    )
    return pa.ListArray.from_arrays([0, 2], turns)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (pa.array([list(PLACE.items())], pa.map_(TEXT, TEXT)), '{"city": "Oslo", "day": "2"}'),
        (in_json('{"city":"Oslo", "n":1.50}'), '{"city":"Oslo", "n":1.50}'),
        (in_json('{"city": null}'), '{"city": null}'),
        (in_json("null"), "{}"),
        (inside(pa.array([Decimal("1.50")])), '{"a": 1.50}'),
        (inside(pa.array([DAY])), '{"a": "2024-01-02"}'),
        (inside(in_json("4")), '{"a": 4}'),
        (inside(in_json("1.50")), '{"a": 1.50}'),
    ],
)
def test_arguments_of_a_call_are_the_same_for_each_type(tmp_path: Path, arguments: pa.Array, text: str) -> None:
    (row,) = rows_of(tmp_path, messages=called(arguments))
    assert isinstance(row, Row)
    messages = messages_of(row.value)
    assert validate_messages(messages) is None
    found = messages[1]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(found, Arguments)
    assert str(found) == text
    assert to_json(dict(found)) == text.replace('":"', '": "').replace('":1', '": 1')


def test_bytes_are_no_arguments(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, messages=called(inside(pa.array([b"a"]))))
    assert isinstance(row, Row)
    assert str(validate_messages(messages_of(row.value))).startswith("malformed tool call")


@pytest.mark.parametrize("said", ["4", "1.50", "007", "[1, 2]", '{"a": 1}', '[{"a": 1}]', "[]", "plain", "a\nb"])
def test_an_answer_that_datasets_wrote_as_json_is_learnt_as_it_was(tmp_path: Path, said: str) -> None:
    datasets = pytest.importorskip("datasets")
    turns = [{"role": "user", "content": [{"type": "text", "text": "q"}]}, {"role": "assistant", "content": said}]
    rows = [{"messages": turns, "tools": [{"name": "f"}], "prompt": [turns[0]], "answer": said}]
    part = {"role": datasets.Value("string"), "content": datasets.Json()}
    both = datasets.Features(
        {"messages": datasets.List(part), "tools": datasets.Json(), "prompt": datasets.List(datasets.Json()),
         "answer": datasets.Json()}
    )  # fmt: skip
    datasets.Dataset.from_list(rows, features=both).to_parquet(tmp_path / "rows.parquet")
    (row,) = read_files([local_file(tmp_path / "rows.parquet")])
    assert isinstance(row, Row)
    wanted = [{"role": "user", "content": "q"}, {"role": "assistant", "content": said}]
    assert messages_of({"messages": row.value["messages"]}) == wanted
    assert messages_of({"prompt": row.value["prompt"], "response": row.value["answer"]}) == wanted
    assert tools_of(row.value) == [{"type": "function", "function": {"name": "f"}}]
    assert read_question({"question": "q", "answer": row.value["answer"]}, "question", "answer") == ("q", said)
    assert spoken(row.value["answer"]) == said


def test_numbers_of_a_column_of_json_keep_their_digits(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, id=in_json("7"), answer=in_json("1.50"), n=pa.array([Decimal("2.50")]))
    assert isinstance(row, Row)
    assert encode_row(row.value) == b'{"id":7,"answer":1.50,"n":2.50}\n'
    assert text_of(row.value["answer"]) == "1.50"
    assert "{answer} {id}".format(**row.value) == "1.50 7"
    assert json.dumps(row.value["id"]) == "7"
