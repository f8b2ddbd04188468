import gzip
import io
import json
import threading
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.reader import Heartbeat, ShardReader
from nemotron_data.rejects import SNIPPET_CHARACTERS, entry_of
from nemotron_data.sources.files import expand
from nemotron_data.sources.json_rows import parse_json
from nemotron_data.sources.reading import Row
from nemotron_shared.system.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def read(tmp_path_factory):
    """Read all of some inputs as one worker does; gives the rows and the reader."""

    def read_rows(*paths, on_bad="error", limit=None) -> tuple[list[Row], ShardReader]:
        (shard,) = make_shards([expand([str(path) for path in paths])], 1 << 30, limit)
        folder = tmp_path_factory.mktemp("shard")
        with ShardReader(shard, folder, on_bad, Heartbeat(folder)) as reader:
            return list(reader), reader

    return read_rows


@pytest.fixture
def texts(read):
    return lambda *paths, **options: [row.value["text"] for row in read(*paths, **options)[0]]


def test_every_format_gives_rows_with_their_place(tmp_path, read):
    write(tmp_path / "a.jsonl", '{"text": "one"}\n\n  \r\n{"text": "two"}\r\n{"text": "three"}')
    write(tmp_path / "b.json", b"\xef\xbb\xbf" + b'{"text": "four"}\n')
    write(tmp_path / "c.jsonl.gz", gzip.compress(b'{"text": "five"}\n'))
    pq.write_table(pa.table({"text": ["six", "seven"]}), tmp_path / "d.parquet", row_group_size=1)
    rows, reader = read(tmp_path)
    assert [row.value["text"] for row in rows] == ["one", "two", "three", "four", "five", "six", "seven"]
    assert [row.line for row in rows] == [1, 4, 5, 1, 1, 1, 2]
    assert rows[0].file == (tmp_path / "a.jsonl").as_posix()
    assert (reader.counts["rows"], reader.counts["blank lines"], reader.rejected) == (7, 2, {})


def test_a_text_file_is_one_document(tmp_path, texts):
    write(tmp_path / "book" / "1.txt", "Once\nupon")
    write(tmp_path / "book" / "2.md", "# A time\n")
    assert texts(tmp_path / "book") == ["Once\nupon", "# A time\n"]


def test_only_the_newline_byte_ends_a_line(tmp_path, texts):
    text = "a\u2028b\u0085c\x0bd"
    write(tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False) + "\n")
    assert texts(tmp_path / "a.jsonl") == [text]


def test_folders_are_sorted_and_hidden_files_left_out(tmp_path, texts):
    for name in ("b/2.jsonl", "a/1.jsonl", "c.jsonl", ".cache/x.jsonl", ".tmp-c.jsonl"):
        write(tmp_path / name, json.dumps({"text": name}) + "\n")
    assert texts(tmp_path) == ["a/1.jsonl", "b/2.jsonl", "c.jsonl"]
    assert texts(tmp_path / "*" / "*.jsonl") == ["a/1.jsonl", "b/2.jsonl"]
    assert texts(tmp_path / "**" / "*.jsonl", limit=2) == ["a/1.jsonl", "b/2.jsonl"]


def test_a_name_with_glob_characters_is_first_of_all_a_name(tmp_path, texts):
    write(tmp_path / "a[1].jsonl", '{"text": "x"}\n')
    assert texts(tmp_path / "a[1].jsonl") == ["x"]


BAD_LINES = [
    (b'{"text": "x', "malformed JSON"),
    (b'{"text": NaN}', "malformed JSON"),
    (b'{"text": "\\ud800"}', "malformed JSON"),
    (b'{"text": "\xff"}', "invalid UTF-8"),
    (b"[1, 2]", "not a JSON object"),
    (b"7", "not a JSON object"),
    (b'{"a":' + b"[" * 1015 + b"]" * 1015 + b"}", "malformed JSON"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_bad_line_is_named_or_rejected(tmp_path, read, line, reason):
    path = write(tmp_path / "a.jsonl", b'{"text": "good"}\n' + line + b'\n{"text": "after"}\n')
    with pytest.raises(UserError, match="a.jsonl:2: " + reason) as caught:
        read(path)
    assert line[:5].decode() in caught.value.message
    rows, reader = read(path, on_bad="reject")
    assert [row.value["text"] for row in rows] == ["good", "after"]
    assert reader.rejected == {reason: 1}


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_a_bad_document_can_be_rejected(tmp_path, read, content):
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=r"a\.txt:1"):
        read(path)
    rows, reader = read(path, on_bad="reject")
    assert (rows, reader.rejected.total()) == ([], 1)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_a_file_cut_short_is_an_error_even_when_rejecting(tmp_path, read, name):
    if name.endswith("gz"):
        whole = gzip.compress("\n".join(json.dumps({"text": str(i)}) for i in range(5000)).encode())
    else:
        pq.write_table(pa.table({"text": ["x"] * 1000}), tmp_path / name)
        whole = (tmp_path / name).read_bytes()
    path = write(tmp_path / name, whole[: len(whole) // 2])
    with pytest.raises(UserError, match=name):
        read(path, on_bad="reject")


class Watched(io.FileIO):
    """A file that notes which threads read it."""

    threads: ClassVar[set[int]] = set()

    def read(self, size: int | None = -1) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)


def test_no_thread_that_outlives_the_file_reads_parquet(tmp_path, read, monkeypatch):
    pq.write_table(pa.table({"text": ["x"] * 10, "number": range(10)}), tmp_path / "a.parquet", row_group_size=2)
    monkeypatch.setattr("nemotron_data.sources.tables.open_input", lambda file: Watched(file.path))
    assert len(read(tmp_path / "a.parquet")[0]) == 10
    assert Watched.threads == {threading.get_ident()}


def test_integers_of_any_size_stay_exact():
    big = 2**200 + 1
    assert parse_json(json.dumps({"a": [{"b": big}], "c": -big, "d": 1e300}).encode()) == {
        "a": [{"b": big}],
        "c": -big,
        "d": 1e300,
    }


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_number_of_few_bits_has_few_digits(tmp_path, read, kind):
    values = [0.1, 3.0, None, float("nan"), float("-inf")]
    pq.write_table(pa.table({"text": ["x"] * 5, "score": pa.array(values, kind)}), tmp_path / "a.parquet")
    rows, _ = read(tmp_path / "a.parquet")
    assert str([row.value["score"] for row in rows]) == "[0.1, 3.0, None, nan, -inf]"


SMALL = pa.float32()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(SMALL), [0.1, None, 511025152.0]),
        (pa.list_(pa.float16()), [0.1, 4328.0]),
        (pa.list_(SMALL, 2), [0.1, 0.7]),
        (pa.large_list(pa.list_(SMALL)), [[0.1], [], None]),
        (pa.struct([("pass_rate", SMALL), ("name", pa.string())]), {"pass_rate": 0.1, "name": "a"}),
        (pa.list_(pa.struct([("of", pa.map_(pa.string(), SMALL))])), [{"of": {"a": 0.1}}]),
    ],
)
def test_numbers_inside_of_a_parquet_value_have_the_digits_of_their_column(tmp_path, read, kind, value):
    in_arrow = [{"of": list(value[0]["of"].items())}] if "map" in str(kind) else value
    pq.write_table(pa.table({"more": pa.array([in_arrow, None, in_arrow], kind)}), tmp_path / "a.parquet")
    rows, _ = read(tmp_path / "a.parquet")
    assert [row.value["more"] for row in rows] == [value, None, value]


@pytest.mark.parametrize(("kind", "number"), [(pa.float16(), 4328.0), (pa.float32(), 511025152.0)])
def test_a_whole_number_of_few_bits_keeps_its_value(tmp_path, read, kind, number):
    pq.write_table(pa.table({"text": ["x"], "score": pa.array([number], kind)}), tmp_path / "a.parquet")
    rows, _ = read(tmp_path / "a.parquet")
    assert rows[0].value["score"] == number


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        (["train.jsonl"], "trian.jsonl", "did you mean 'train.jsonl'"),
        (["data/train.jsonl"], "date/train.jsonl", "did you mean 'data'"),
        (["train.jsonl"], "nothing/*.jsonl", "holds no 'nothing'"),
        (["train.xml"], "train.xml", "unknown extension"),
        (["folder/.hidden.jsonl"], "folder", "an empty folder"),
        (["folder/README.md", "folder/a.jsonl"], "folder", "both rows and text documents"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path, monkeypatch, names, asked, message):
    monkeypatch.chdir(tmp_path)
    for name in names:
        write(Path(name), "")
    with pytest.raises(UserError) as caught:
        expand([asked])
    assert message in str(caught.value)
    assert caught.value.remedy


def test_an_entry_of_the_rejected_takes_any_text_and_stays_short():
    entry = json.loads(entry_of("a.jsonl", 1, "bad", b"\xff" * 10_000, "\ud800 \u2028 é"))
    assert entry["snippet"].startswith("\\xff") and len(entry["snippet"]) == SNIPPET_CHARACTERS
    assert entry["detail"] == "\\ud800 \u2028 é"
