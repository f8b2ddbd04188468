"""The same rows out of every kind of file, in every encoding; and what of a text is a document."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from nemotron_data.chat.formats import CHAT_FORMATS
from nemotron_data.prep.plan import make_shards
from nemotron_data.sources import tables
from nemotron_data.sources.datasets import find_blend
from nemotron_data.sources.detect import detect_files
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import Documents, Reading, local_file
from nemotron_data.sources.reading import BadRow, Range, Row, read_range
from nemotron_data.sources.text import with_choice
from nemotron_shared.system.errors import UserError

ROWS = [{"question": f'Ürün "{n}",\nplease; 2+{n}?', "answer": f"{n + 2} é"} for n in range(40)]


def lines() -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def table(delimiter: str) -> str:
    made = io.StringIO(newline="")
    writer = csv.DictWriter(made, ["question", "answer"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return made.getvalue()


def parquet_file() -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), made)
    return made.getvalue()


KINDS: dict[str, Callable[[], bytes]] = {
    "lines.jsonl": lambda: lines().encode(),
    "mark.ndjson": lambda: lines().encode("utf-8-sig"),
    "wide.jsonl": lambda: lines().encode("utf-16"),
    "big.json": lambda: b"\xfe\xff" + json.dumps(ROWS, indent=1, ensure_ascii=False).encode("utf-16-be"),
    "list.json": lambda: json.dumps(ROWS).encode(),
    "list.jsonl": lambda: json.dumps(ROWS, indent=2).encode(),
    "object.json": lambda: json.dumps({"version": [1, "x"], "data": ROWS}, indent=2).encode(),
    "one_line.json": lambda: json.dumps({"train": ROWS}).encode(),
    "comma.csv": lambda: table(",").encode(),
    "excel.csv": lambda: table(";").encode("utf-8-sig"),
    "tabs.tsv": lambda: table("\t").encode(),
    "table.parquet": parquet_file,
    "lines.jsonl.gz": lambda: gzip.compress(lines().encode()),
    "list.json.zst": lambda: zstandard.ZstdCompressor().compress(json.dumps(ROWS).encode()),
    "table.csv.gz": lambda: gzip.compress(table(",").encode()),
}


UTF_8 = Reading()


def read(file: Path, reading: Reading = UTF_8) -> list[Row]:
    found = replace(local_file(file), reading=reading)
    rows = list(read_range(Range(found, 0, max(1, found.size))))
    assert all(isinstance(row, Row) for row in rows), rows
    return rows


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(KINDS[name]())
    rows = read(file)
    assert [row.value for row in rows] == ROWS
    assert sorted({row.line for row in rows}) == sorted(row.line for row in rows) or name in (
        "list.json",
        "list.json.zst",
        "one_line.json",
    )
    found = detect_files(expand([file]))
    assert (found.kind, found.format, found.fields) == ("chat", "question_answer", ("question", "answer"))


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"dialog": [{"role": "user", "content": "2+2?"}], "Thoughts": "t", "history": [], "id": 1}, ("history", "id")),
        ({"question": "2+2?", "answer": "4", "history": [], "Thoughts": "t"}, ("Thoughts",)),
    ],
)
def test_optional_fields_of_a_format_are_read_with_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], unread: tuple[str, ...]
) -> None:
    dialog = replace(CHAT_FORMATS["messages"], names=[["dialog"]], beside=["thoughts"])
    monkeypatch.setitem(CHAT_FORMATS, "dialog", dialog)
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert detect_files(expand([tmp_path / "a.jsonl"])).unread == unread


def test_what_cannot_be_cut_is_one_shard(tmp_path: Path) -> None:
    for name in ("lines.jsonl", "wide.jsonl", "list.json", "comma.csv"):
        (tmp_path / name).write_bytes(KINDS[name]())
    counts = {
        name: len(make_shards([[local_file(tmp_path / name)]], 500))
        for name in ("wide.jsonl", "list.json", "comma.csv")
    }
    assert set(counts.values()) == {1}
    assert len(make_shards([[local_file(tmp_path / "lines.jsonl")]], 500)) > 4


def test_the_lines_of_a_list_and_a_table_are_those_of_the_file(tmp_path: Path) -> None:
    for name in ("list.jsonl", "comma.csv"):
        (tmp_path / name).write_bytes(KINDS[name]())
    assert [row.line for row in read(tmp_path / "list.jsonl")][:3] == [2, 6, 10]
    assert [row.line for row in read(tmp_path / "comma.csv")][:3] == [2, 4, 6]


def test_an_encoding_is_said_or_an_error(tmp_path: Path) -> None:
    file = tmp_path / "old.csv"
    file.write_bytes(table(",").encode("latin1"))
    assert [row.value for row in read(file, Reading("latin1"))] == ROWS
    with pytest.raises(UserError) as caught:
        read(file)
    at = file.read_bytes().index(b"\xdc")
    assert f"old.csv: not UTF-8: byte {at} of it is 0xdc" in caught.value.message
    assert "iconv -f latin1 -t utf-8" in str(caught.value.remedy)
    unmarked = tmp_path / "unmarked.jsonl"
    unmarked.write_bytes(lines().encode("utf-16-le"))
    with pytest.raises(UserError, match="perhaps UTF-16-LE"):
        read(unmarked)
    assert [row.value for row in read(unmarked, Reading("utf-16-le"))] == ROWS


@pytest.mark.parametrize("block", [7, 64])
def test_a_list_is_read_through_a_small_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("nemotron_data.sources.json_rows.BLOCK", block)
    file = tmp_path / "object.json"
    file.write_bytes(KINDS["object.json"]())
    assert [row.value for row in read(file)] == ROWS


def test_an_object_of_rows_is_no_blend(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    for content, blend in (
        ({"train": ROWS}, False),
        ({"data": ROWS}, False),
        ({"datasets": [{"name": "a", "pth": "x"}]}, True),
        ({"train": [{"name": "a", "path": "x"}]}, True),
    ):
        file.write_text(json.dumps(content, indent=1))
        assert (find_blend(str(file), tmp_path) is not None) == blend


@pytest.mark.parametrize(
    ("name", "text", "how", "wanted"),
    [
        ("a.txt", "one\nmore\n\ntwo\n\n\nthree\n", "auto", ["one\nmore", "two", "three"]),
        ("a.txt", "I\n\np\n\n\n\nII\n\nq\n\n\n\nIII", "auto", ["I\n\np", "II\n\nq", "III"]),
        ("a.txt", "one\r\n\r\ntwo", "whole", ["one\r\n\r\ntwo"]),
        (
            "a.md",
            "# A\n\nx\n\n## B\n```\n# no heading\n```\n# C\n\ny",
            "auto",
            ["# A\n\nx", "## B\n```\n# no heading\n```", "# C\n\ny"],
        ),
        ("a.md", "just\n\ntext", "auto", ["just", "text"]),
        ("a.md", "# A\n## A.1\nx\n# B\ny", "headings", ["# A\n## A.1\nx", "# B\ny"]),
    ],
)
def test_a_text_is_cut_into_documents(tmp_path: Path, name: str, text: str, how: str, wanted: list[str]) -> None:
    (tmp_path / name).write_bytes(text.encode())
    (file,) = with_choice([replace(local_file(tmp_path / name), reading=Reading(None, how))])
    rows = list(read_range(Range(file, 0, file.size)))
    assert [row.value["text"] for row in rows if isinstance(row, Row)] == wanted


def test_each_of_many_text_files_is_one_document(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("a\n\nb")
    files = with_choice([replace(file, reading=Reading(None, "auto")) for file in expand([tmp_path])])
    assert {file.reading.documents for file in files} == {"whole"}
    assert detect_files(expand([tmp_path])).kind == "text"


def packed(file: Path, column: pa.Array, **options: Any) -> Path:
    """A Parquet file of one column."""
    pq.write_table(pa.table({"text": column}), file, compression="zstd", store_schema=False, **options)
    return file


@pytest.mark.parametrize("kind", ["dictionary", "list", "delta"])
def test_a_text_that_rows_share_is_not_repeated_for_all_of_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), pa.array(["word " * 400_000]))
    listed = pa.ListArray.from_arrays(pa.array(range(0, 301, 3), pa.int32()), shared)
    delta = {"column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "use_dictionary": False} if kind == "delta" else {}
    column = {"list": listed, "delta": shared.dictionary_decode()}.get(kind, shared)
    file = packed(tmp_path / "a.parquet", column, **delta)
    assert file.stat().st_size < 100_000
    monkeypatch.setattr(tables, "BATCH_BYTES", 8 << 20)
    before = pa.total_allocated_bytes()
    rows = read_range(Range(local_file(file), 0, 1))
    for number, row in enumerate(rows):
        assert isinstance(row, Row)
        assert len(str(row.value)) > 2_000_000
        assert pa.total_allocated_bytes() - before < 100 << 20
        if number == 20:
            break
    rows.close()


def test_rows_of_ordinary_size_come_many_at_once(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.parquet", pa.array([f"text {n} " * 300 for n in range(3000)]))
    with file.open("rb") as opened, pq.ParquetFile(opened) as table:
        column = table.metadata.row_group(0).column(0)
        assert column.total_uncompressed_size > tables.ORDINARY_DICTIONARY and column.has_dictionary_page
        assert tables.rows_at_once(opened, table.metadata.row_group(0)) > 50


def test_a_cell_beyond_all_measure_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemotron_data.sources.reading.LONGEST_LINE", 1000)
    file = packed(tmp_path / "a.parquet", pa.array(["a", "b" * 2000, "c"]))
    first, bad, last = read_range(Range(local_file(file), 0, 1))
    assert isinstance(first, Row) and isinstance(last, Row)
    assert isinstance(bad, BadRow) and (bad.line, bad.why.reason) == (2, "line too long")


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([0, 1 << 62, 0], pa.timestamp("us")), "column 'text' (timestamp[us]): "),
        (pa.array([0, (1 << 31) - 1, 0], pa.date32()), "column 'text' (date32[day]): "),
        (
            pa.array([None, 1, None], pa.timestamp("us", tz="Mars/Base")),
            "column 'text' (timestamp[us, tz=Mars/Base]): ",
        ),
        (pa.array([b"a", b"\xff", b"c"]).view(pa.string()), "column 'text' (string): 'utf-8' codec can't decode"),
    ],
    ids=["time", "date", "time zone", "bytes"],
)
def test_a_value_that_python_cannot_hold_is_a_bad_row(tmp_path: Path, column: pa.Array, why: str) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": column}), file)
    first, bad, last = read_range(Range(local_file(file), 0, 1))
    assert isinstance(first, Row) and isinstance(last, Row)
    assert isinstance(bad, BadRow) and (bad.line, bad.why.reason) == (2, "a value that cannot be read")
    assert why in bad.why.detail


LONG = b"x" * 3000


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'question,answer\nq,a\nq,"' + b"x\n" * 1500 + b'"\n', 3),
        (b"question,answer\nq," + LONG + b"\n", 2),
        (b"question," + LONG + b"\nq,a\n", 1),
        (b'"question,answer\n' + b"q,a\n" * 500, 1),
    ],
    ids=["lines in quotation marks", "a cell", "a header", "a mark left open"],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_record_beyond_all_measure_ends_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, line: int, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("nemotron_data.sources.reading.LONGEST_LINE", 1000)
    path = tmp_path / ("a.csv" if pack is bytes else "a.csv.gz")
    path.write_bytes(pack(content))
    with pytest.raises(UserError, match=rf"{path.name}:{line}: a record of more than"):
        list(read_range(Range(local_file(path), 0, sys.maxsize)))


@pytest.mark.parametrize(("name", "how"), [("a.txt", "whole"), ("a.txt", "blank_lines"), ("a.md", "headings")])
@pytest.mark.parametrize("long", [LONG, b"x\n" * 1500], ids=["one line", "many lines"])
def test_a_document_beyond_all_measure_is_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: Documents, long: bytes
) -> None:
    monkeypatch.setattr("nemotron_data.sources.reading.LONGEST_LINE", 1000)
    several = b"# One\nshort\n\n# Two\n" + long + b"\n\n# Three\nshort\n"
    (tmp_path / name).write_bytes(long if how == "whole" else several)
    file = local_file(tmp_path / name)
    rows = list(read_range(Range(replace(file, reading=replace(file.reading, documents=how)), 0, sys.maxsize)))
    bad = [row for row in rows if isinstance(row, BadRow)]
    assert [row.why.reason for row in bad] == ["document too long"]
    assert len(rows) == (1 if how == "whole" else 3)
