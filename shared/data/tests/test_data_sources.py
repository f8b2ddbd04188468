import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemotron_data.rejects import SNIPPET_CHARACTERS, Rejects
from nemotron_data.sources.reading import parse_json
from nemotron_data.sources.whole_files import ReadCounts, read_rows
from nemotron_shared.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(*paths, **options) -> list[str]:
    return [row.value["text"] for row in read_rows([str(path) for path in paths], **options)]


def test_every_format_gives_rows_with_their_place(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "one"}\n\n  \r\n{"text": "two"}\r\n{"text": "three"}')
    write(tmp_path / "b.json", b"\xef\xbb\xbf" + b'{"text": "four"}\n')
    write(tmp_path / "c.jsonl.gz", gzip.compress(b'{"text": "five"}\n'))
    pq.write_table(pa.table({"text": ["six", "seven"]}), tmp_path / "d.parquet", row_group_size=1)
    counts = ReadCounts()
    rows = list(read_rows([tmp_path], counts=counts))
    assert [row.value["text"] for row in rows] == ["one", "two", "three", "four", "five", "six", "seven"]
    assert [row.line for row in rows] == [1, 4, 5, 1, 1, 1, 2]
    assert rows[0].file == (tmp_path / "a.jsonl").as_posix()
    assert counts == ReadCounts(rows=7, blank_lines=2, rejected=0)


def test_a_text_file_is_one_document(tmp_path):
    write(tmp_path / "book" / "1.txt", "Once\nupon")
    write(tmp_path / "book" / "2.md", "# A time\n")
    assert texts(tmp_path / "book") == ["Once\nupon", "# A time\n"]


def test_only_the_newline_byte_ends_a_line(tmp_path):
    text = "a\u2028b\u0085c\x0bd"
    write(tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False) + "\n")
    assert texts(tmp_path / "a.jsonl") == [text]


def test_folders_are_sorted_and_hidden_files_left_out(tmp_path):
    for name in ("b/2.jsonl", "a/1.jsonl", "c.jsonl", ".cache/x.jsonl", ".tmp-c.jsonl"):
        write(tmp_path / name, json.dumps({"text": name}) + "\n")
    assert texts(tmp_path) == ["a/1.jsonl", "b/2.jsonl", "c.jsonl"]
    assert texts(tmp_path / "*" / "*.jsonl") == ["a/1.jsonl", "b/2.jsonl"]
    assert texts(tmp_path / "**" / "*.jsonl", limit=2) == ["a/1.jsonl", "b/2.jsonl"]


def test_a_name_with_glob_characters_is_first_of_all_a_name(tmp_path):
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
def test_a_bad_line_is_named_or_rejected(tmp_path, line, reason):
    path = write(tmp_path / "a.jsonl", b'{"text": "good"}\n' + line + b'\n{"text": "after"}\n')
    with pytest.raises(UserError, match="a.jsonl:2: " + reason) as caught:
        list(read_rows([path]))
    assert line[:5].decode() in caught.value.message
    with Rejects(tmp_path / "rejected.jsonl") as rejects:
        rows = list(read_rows([path], on_bad="reject", rejects=rejects))
    assert [row.value["text"] for row in rows] == ["good", "after"]
    assert rejects.count_by_reason == {reason: 1}
    written = json.loads((tmp_path / "rejected.jsonl").read_text())
    assert (written["file"], written["line"], written["reason"]) == (path.as_posix(), 2, reason)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_a_bad_document_can_be_rejected(tmp_path, content):
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=r"a\.txt:1"):
        list(read_rows([path]))
    with Rejects(tmp_path / "r.jsonl") as rejects:
        assert list(read_rows([path], on_bad="reject", rejects=rejects)) == []
    assert rejects.total == 1


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_a_file_cut_short_is_an_error_even_when_rejecting(tmp_path, name):
    if name.endswith("gz"):
        whole = gzip.compress("\n".join(json.dumps({"text": str(i)}) for i in range(5000)).encode())
    else:
        pq.write_table(pa.table({"text": ["x"] * 1000}), tmp_path / name)
        whole = (tmp_path / name).read_bytes()
    path = write(tmp_path / name, whole[: len(whole) // 2])
    with Rejects(tmp_path / "r.jsonl") as rejects, pytest.raises(UserError, match=name):
        list(read_rows([path], on_bad="reject", rejects=rejects))


def test_integers_of_any_size_stay_exact():
    big = 2**200 + 1
    assert parse_json(json.dumps({"a": [{"b": big}], "c": -big, "d": 1e300}).encode()) == {
        "a": [{"b": big}],
        "c": -big,
        "d": 1e300,
    }


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        (["train.jsonl"], "trian.jsonl", "did you mean 'train.jsonl'"),
        (["data/train.jsonl"], "date/train.jsonl", "did you mean 'data'"),
        (["train.jsonl"], "nothing/*.jsonl", "holds no 'nothing'"),
        (["train.csv"], "train.csv", "unknown extension"),
        (["train.jsonl"], "train.jsonl", "holds no rows"),
        (["folder/.hidden.jsonl"], "folder", "an empty folder"),
        (["folder/README.md", "folder/a.jsonl"], "folder", "both rows and text documents"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path, monkeypatch, names, asked, message):
    monkeypatch.chdir(tmp_path)
    for name in names:
        write(Path(name), "")
    with pytest.raises(UserError) as caught:
        list(read_rows([asked]))
    assert message in str(caught.value)
    assert caught.value.remedy


def test_missing_inputs_are_found_before_the_first_row(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "x"}\n')
    with pytest.raises(UserError):
        read_rows([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


def test_a_limit_below_one_is_refused(tmp_path):
    with pytest.raises(UserError, match="limit of 0"):
        read_rows([write(tmp_path / "a.jsonl", "{}\n")], limit=0)


def test_rejects_stream_to_disk_and_vanish_after_an_error(tmp_path):
    target = tmp_path / "rejected.jsonl"
    with pytest.raises(RuntimeError), Rejects(target) as rejects:
        rejects.add("a", 1, "bad", "x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with Rejects(target) as rejects:
        for line in range(3000):
            rejects.add("a.jsonl", line, "bad" if line % 3 else "worse", b"\xff" * 10_000)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 100_000, "nothing was spilled"
        assert not target.exists()
    assert rejects.count_by_reason == {"worse": 1000, "bad": 2000}
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == rejects.total == 3000
    assert lines[0]["snippet"].startswith("\\xff")
    assert max(len(line["snippet"]) for line in lines) == SNIPPET_CHARACTERS


def test_rejects_take_any_text_and_an_empty_file_says_that_nothing_was_refused(tmp_path):
    with Rejects(tmp_path / "r.jsonl") as rejects:
        pass
    assert (tmp_path / "r.jsonl").read_bytes() == b""
    with Rejects(tmp_path / "r.jsonl") as rejects:
        rejects.add("a", 1, "bad", "\ud800 \u2028 é")
    assert json.loads((tmp_path / "r.jsonl").read_text())["snippet"] == "\\ud800 \u2028 é"
