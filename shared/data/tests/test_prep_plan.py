"""Ranges give each row once, whatever the size of a shard."""

import gzip
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prep_support import plan, write_rows

from nemotron_data.prep.plan import make_shards
from nemotron_data.sources.files import local_file
from nemotron_data.sources.reading import BadRow, Place, Range, Row, read_range
from nemotron_shared.errors import UserError


def numbers_in(shards) -> list[int]:
    rows = [row for shard in shards for part in shard.ranges for row in read_range(part)]
    return [row.value["n"] for row in rows]


@pytest.mark.parametrize("shard_bytes", [1, 7, 64, 1000, 10**6])
def test_every_line_belongs_to_just_one_range(tmp_path: Path, shard_bytes: int):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"n": n, "pad": "é" * (n * 7 % 23)}) + "\n" for n in range(60)))
    shards = plan([file], shard_bytes)
    assert numbers_in(shards) == list(range(60))
    assert [shard.index for shard in shards] == list(range(len(shards)))


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_lines_of_any_length_with_any_shard_size(tmp_path_factory, lengths, shard_bytes, ends_with_newline):
    file = tmp_path_factory.mktemp("range") / "a.jsonl"
    lines = [json.dumps({"n": n, "pad": "x" * length}) for n, length in enumerate(lengths)]
    file.write_text("\n".join(lines) + ("\n" if ends_with_newline and lines else ""))
    assert numbers_in(plan([file], shard_bytes)) == list(range(len(lengths)))


@pytest.mark.parametrize(("sizes", "count"), [(1, 1), (3, 3), (4, 4), (5, 8), (8, 8), (9, 12)])
def test_a_large_file_gives_two_and_four_workers_the_same(tmp_path: Path, sizes: int, count: int):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"a"}\n' * (sizes * 1000))
    shards = make_shards([[local_file(tmp_path / "a.jsonl")]], 13_000)
    assert len(shards) == count


def test_small_neighbours_share_a_shard_and_order_is_kept(tmp_path: Path):
    for name in "abcdef":
        (tmp_path / f"{name}.txt").write_text(name * 300)
    shards = plan([tmp_path], 1000)
    assert [len(shard.ranges) for shard in shards] == [3, 3]
    assert "".join(Path(p.file.path).stem for s in shards for p in s.ranges) == "abcdef"


def test_a_file_never_stands_twice_in_a_shard(tmp_path: Path):
    for size in range(1, 60, 3):
        write_rows(tmp_path / f"{size:02d}.jsonl", size)
    for shard_bytes in (3, 20, 100, 333, 1000, 2048):
        for shard in plan([tmp_path], shard_bytes):
            names = [part.file.path for part in shard.ranges]
            assert len(names) == len(set(names))


def test_parquet_is_cut_between_row_groups(tmp_path: Path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), file, row_group_size=100)
    shards = plan([file], 500)
    assert len(shards) > 2
    assert numbers_in(shards) == list(range(1000))
    rows = [row for shard in shards for part in shard.ranges for row in read_range(part)]
    assert [row.line for row in rows] == list(range(1, 1001)), "rows are counted in their file"


def test_compressed_files_are_read_whole(tmp_path: Path):
    file = tmp_path / "a.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps({"n": n}) + "\n" for n in range(5000))
    shards = plan([file], 100)
    assert len(shards) == 1
    assert numbers_in(shards) == list(range(5000))


def test_a_limit_makes_one_shard_per_data_set(tmp_path: Path):
    files = [local_file(write_rows(tmp_path / f"{name}.jsonl", 100)) for name in "ab"]
    shards = make_shards([[files[0]], [files[1]]], 10, limit=7)
    assert [(shard.part, shard.limit, len(shard.ranges)) for shard in shards] == [(0, 7, 1), (1, 7, 1)]


def test_a_line_longer_than_can_be_held_is_a_bad_row_and_costs_no_memory(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("nemotron_data.sources.reading.LONGEST_LINE", 1000)
    monkeypatch.setattr("nemotron_data.sources.reading.BLOCK_BYTES", 64)
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"n": 1}}\n{{"n": "{"9" * 5000}"}}\n{{"n": 2}}\n')
    for part in (Range(local_file(file), 0, sys.maxsize), Range(local_file(file), 3, file.stat().st_size)):
        rows = list(read_range(part))
        bad = [row for row in rows if isinstance(row, BadRow)]
        assert [row.reason for row in bad] == ["line too long"]
        assert [row.value["n"] for row in rows if isinstance(row, Row)][-1] == 2


def test_blank_lines_are_counted(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    file.write_text('\n{"n": 1}\n   \n\r\n{"n": 2}')
    place = Place()
    rows = list(read_range(Range(local_file(file), 0, 100), place))
    assert [row.value["n"] for row in rows] == [1, 2]
    assert (place.lines, place.blank_lines) == (5, 3)


def test_a_vanished_file_is_named(tmp_path: Path):
    file = local_file(write_rows(tmp_path / "a.jsonl", 1))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(UserError, match=r"a\.jsonl"):
        list(read_range(Range(file, 0, 10)))
