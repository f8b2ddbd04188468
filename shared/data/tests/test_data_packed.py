from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_support import pack_row, write_packed

from nemotron_data.formats import packed as module
from nemotron_data.formats.packed import PackedRow, labels_of, read_packed
from nemotron_shared.errors import UserError

A = ([11, 12, 13, 21, 22, 2], [0, 0, 0, 1, 1, 1])
B = ([14, 15, 23, 2], [0, 0, 1, 1])
TOKENS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 1)), min_size=2, max_size=8)
SEQUENCES = st.lists(TOKENS.map(lambda pairs: tuple(map(list, zip(*pairs, strict=True)))), min_size=1, max_size=6)


def as_lists(row: PackedRow) -> list[list[int]]:
    return [row.input_ids.tolist(), row.loss_mask.tolist(), row.seq_start_id.tolist()]


def test_the_mask_is_shifted_once_inside_each_sequence():
    row = pack_row([A, B])
    assert as_lists(row) == [[11, 12, 13, 21, 22, 2, 14, 15, 23, 2], [0, 0, 1, 1, 1, 0, 0, 1, 1, 0], [0, 6]]
    labels = labels_of(row)
    assert labels[labels != -100].tolist() == [21, 22, 2, 23, 2]
    assert labels.tolist() == [-100, -100, 21, 22, 2, -100, -100, 23, 2, -100]


@settings(deadline=None)
@given(SEQUENCES)
def test_exactly_the_answer_tokens_become_labels(sequences):
    row = pack_row(sequences)
    assert row.problem() is None
    labels = labels_of(row)
    wanted = [token for ids, mask in sequences for token, counts in zip(ids[1:], mask[1:], strict=True) if counts]
    assert labels[labels != -100].tolist() == wanted
    assert (labels[np.append(row.seq_start_id[1:], len(labels)) - 1] == -100).all()


def test_rows_survive_the_file_and_its_schema_is_the_known_one(tmp_path):
    path = tmp_path / "train.parquet"
    write_packed(path, [A, B, A], [[0, 1], [2]])
    schema = pq.read_schema(path)
    assert schema.names == ["input_ids", "loss_mask", "seq_start_id"]
    assert [schema.field(name).type.value_type for name in schema.names] == [pa.int32(), pa.uint8(), pa.int32()]
    rows = read_packed(path)
    assert list(map(as_lists, rows)) == [as_lists(pack_row([A, B])), as_lists(pack_row([A]))]
    assert [column.dtype for column in (rows[0].input_ids, rows[0].loss_mask)] == [np.int32, np.uint8]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_equal_rows_give_equal_bytes_in_row_groups(tmp_path, compression):
    for name in ("a", "b"):
        write_packed(tmp_path / name, [A, B], [[0], [1], [0, 1], [1, 0], [0]], 2, compression)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    metadata = pq.read_metadata(tmp_path / "a")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2, 1]
    assert len(read_packed(tmp_path / "a")) == 5


def test_an_error_or_no_row_leaves_no_file(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no rows"):
        write_packed(tmp_path / "x", [A], [])
    with pytest.raises(UserError, match="snapy"):
        write_packed(tmp_path / "x", [A], [[0]], compression="snapy")
    monkeypatch.setattr(module, "_rows_of_bins", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_packed(tmp_path / "x", [A], [[0]])
    assert list(tmp_path.iterdir()) == []


WRONG_ROWS = {
    "unequal lengths": ([1, 2, 3], [0, 0], [0]),
    "no start": ([1, 2, 3], [0, 0, 0], []),
    "late start": ([1, 2, 3], [0, 0, 0], [1]),
    "repeated start": ([1, 2, 3], [0, 0, 0], [0, 0]),
    "falling start": ([1, 2, 3, 4, 5, 6], [0] * 6, [0, 4, 2]),
    "start beyond the end": ([1, 2, 3], [0, 0, 0], [0, 7]),
    "sequence of one token": ([1, 2, 3], [0, 0, 0], [0, 2]),
    "no tokens": ([], [], [0]),
    "mask of two": ([1, 2, 3], [0, 2, 0], [0]),
    "mask not shifted": ([1, 2, 3, 4], [0, 1, 0, 1], [0, 2]),
}


@pytest.mark.parametrize("columns", WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_wrong_row_is_not_read(tmp_path, columns):
    ids, mask, starts = columns
    assert PackedRow(np.array(ids, np.int32), np.array(mask, np.uint8), np.array(starts, np.int32)).problem()
    good = as_lists(pack_row([A]))
    table = [pa.array([good[i], columns[i]], pa.list_(pa.int64())) for i in range(3)]
    pq.write_table(pa.table(table, names=list(module.COLUMNS)), tmp_path / "x")
    with pytest.raises(UserError, match="row 1"):
        read_packed(tmp_path / "x")


def table_without(name: str) -> pa.Table:
    columns = {"input_ids": [[1, 2]], "loss_mask": [[1, 0]], "seq_start_id": [[0]], "extra": [7]}
    return pa.table({key: value for key, value in columns.items() if key != name})


def test_megatrons_own_types_and_extra_columns_are_read(tmp_path):
    pq.write_table(table_without("nothing"), tmp_path / "x.parquet")
    assert [as_lists(row) for row in read_packed(tmp_path / "x.parquet")] == [[[1, 2], [1, 0], [0]]]


def test_a_wrong_or_broken_file_is_named(tmp_path):
    path = tmp_path / "x.parquet"
    wrong: list[pa.Table] = [
        table_without("loss_mask"),
        table_without("loss_mask").append_column("loss_mask", pa.array([[1.0, 0.0]])),
        table_without("loss_mask").append_column("loss_mask", pa.array([1])),
        table_without("loss_mask").append_column("loss_mask", pa.array([None], pa.list_(pa.uint8()))),
        table_without("loss_mask").append_column("loss_mask", pa.array([[1, None]])),
        table_without("loss_mask").append_column("loss_mask", pa.array([[256, 0]])),
    ]
    for table in wrong:
        pq.write_table(table, path)
        with pytest.raises(UserError, match=r"x\.parquet") as caught:
            read_packed(path)
        assert caught.value.remedy
    write_packed(path, [A], [[0]])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="corrupt"):
        read_packed(path)
    with pytest.raises(UserError, match="no such file"):
        read_packed(Path(tmp_path / "y.parquet"))
