"""Nulls that a column's type adds are not a row's, and nulls that a row has are."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemotron_data.sources.input_file import local_file
from nemotron_data.sources.json_rows import is_of_table, without_table_nulls
from nemotron_data.sources.reading import Row, json_row, read_files


def tool(name: str, **properties: str) -> dict[str, Any]:
    about = {key: {"type": kind} for key, kind in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": about}}}


def asked(name: str, **arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


ROWS = [
    {"messages": asked("weather", city="Oslo"), "tools": [tool("weather", city="string"), tool("add", a="integer")]},
    {"messages": asked("add", a=2, b=1.5), "tools": None},
]


def read(file: Path) -> list[dict[str, Any]]:
    rows = list(read_files([local_file(file)]))
    assert all(isinstance(row, Row) for row in rows)
    return [row.value for row in rows if isinstance(row, Row)]


def of_table(tmp_path: Path) -> list[dict[str, Any]]:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "rows.parquet")
    return table.to_pylist()


def test_parquet_and_what_datasets_writes_are_the_rows_that_were_there(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in of_table(tmp_path))
    assert '"b": null' in lines and '"a": null' in lines and '"tool_calls": null' in lines
    (tmp_path / "rows.jsonl").write_text(lines)
    (tmp_path / "list.json").write_text(json.dumps([json.loads(line) for line in lines.splitlines()]))
    for name in ("rows.parquet", "rows.jsonl", "list.json"):
        assert read(tmp_path / name) == ROWS, name


@pytest.mark.parametrize(
    "row",
    [
        {"messages": asked("weather", city="Oslo", unit=None)},
        {"messages": asked("weather", city=None), "tools": [tool("weather", city="string")]},
        {"messages": [{"role": "user", "content": None}], "id": None},
        {"messages": [*asked("f", unit=None), *asked("f", unit="C")]},
        {"a": {"b": None}, "c": [None, {"d": 1}]},
        {"tools": [{"default": None, "const": None, "enum": [None, 1]}]},
    ],
)
def test_a_null_that_a_row_of_json_says_stays(row: dict[str, Any]) -> None:
    assert not is_of_table(row) and without_table_nulls(row) is row
    line = json.dumps(row).encode()
    made = json_row("a.jsonl", 1, line)
    assert isinstance(made, Row) and (made.value, made.raw, made.written) == (row, line, line)


def test_a_parameter_that_is_null_is_none() -> None:
    row = {"tools": [{"parameters": {"properties": {"a": None, "b": {"type": "integer"}}}}], "id": None}
    assert without_table_nulls(row) == {
        "tools": [{"parameters": {"properties": {"b": {"type": "integer"}}}}],
        "id": None,
    }


def test_the_digits_of_a_rows_numbers_stay_when_its_nulls_go() -> None:
    line = b'{"x": [{"n": 1.50, "m": null}, {"n": null, "m": 12345678901234567890123}], "y": null}'
    made = json_row("a.jsonl", 1, line)
    assert isinstance(made, Row)
    assert made.raw == made.written == b'{"x":[{"n":1.50},{"m":12345678901234567890123}],"y":null}'
    assert made.value == {"x": [{"n": 1.5}, {"m": 12345678901234567890123}], "y": None}
