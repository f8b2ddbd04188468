from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_support import pack_row, write_packed

from nemotron_data.formats import packed as module
from nemotron_data.formats.packed import PackedRow, labels_of, largest_id, read_packed
from nemotron_data.formats.sequences import Sequences, SequenceWriter
from nemotron_data.packing import ALGORITHMS, pack
from nemotron_data.split import SPLITS
from nemotron_shared.system.errors import UserError

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
    assert largest_id(path) == max(max(ids) for ids, _ in (A, B))
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


FOLDERS = st.lists(st.lists(st.tuples(TOKENS, st.integers(0, 2)), max_size=6), min_size=1, max_size=4)


def write(folder: Path, sequences: list[tuple[list[tuple[int, int]], int]], per_call: int = 2) -> Path:
    folder.mkdir(parents=True)
    with SequenceWriter(folder) as writer:
        for first in range(0, len(sequences), per_call):
            some = sequences[first : first + per_call]
            ids, mask = np.array([pair for tokens, _ in some for pair in tokens], np.int64).T
            lengths = np.array([len(tokens) for tokens, _ in some])
            writer.add(ids, mask, lengths, np.array([split for _, split in some]))
    return folder


@settings(deadline=None, max_examples=40)
@given(folders=FOLDERS, per_call=st.integers(1, 3), group=st.integers(1, 3))
def test_packed_rows_hold_every_sequence_of_their_split(tmp_path_factory, folders, per_call, group):
    base = tmp_path_factory.mktemp("sequences")
    made = [write(base / str(number), sequences, per_call) for number, sequences in enumerate(folders)]
    everything = Sequences.open(made)
    for number, split in enumerate(SPLITS):
        wanted = [tokens for sequences in folders for tokens, place in sequences if place == number]
        chosen = everything.of_split(split)
        assert len(chosen) == len(wanted)
        if not wanted:
            continue
        bins = pack(chosen.lengths, 12, "best_fit_decreasing", seed=1)
        counted = module.write_packed(base / f"{split}.parquet", chosen, bins, group)
        expected = [pack_row([tuple(zip(*wanted[i], strict=True)) for i in members]) for members in bins.lists()]
        rows = read_packed(base / f"{split}.parquet")
        assert [[column.tolist() for column in (r.input_ids, r.loss_mask, r.seq_start_id)] for r in rows] == [
            [column.tolist() for column in (r.input_ids, r.loss_mask, r.seq_start_id)] for r in expected
        ]
        assert counted == sum(int(row.loss_mask.sum()) for row in rows)


def test_where_folders_begin_and_end_changes_nothing(tmp_path):
    random = np.random.default_rng(3)
    sequences = [([(int(i), int(i) % 2) for i in random.integers(0, 99, n)], 0) for n in random.integers(2, 40, 300)]
    files = []
    for size in (300, 100, 7):
        parts = [sequences[i : i + size] for i in range(0, 300, size)]
        folders = [write(tmp_path / str(size) / str(i), part) for i, part in enumerate(parts)]
        chosen = Sequences.open(folders).of_split("train")
        for algorithm in ALGORITHMS:
            bins = pack(chosen.lengths, 64, algorithm, seed=0)
            module.write_packed(tmp_path / f"{size}-{algorithm}.parquet", chosen, bins, 50)
        files.append([(tmp_path / f"{size}-{algorithm}.parquet").read_bytes() for algorithm in ALGORITHMS])
    assert files[0] == files[1] == files[2]


def test_a_folder_without_sequences_is_no_error(tmp_path):
    with SequenceWriter(tmp_path):
        pass
    assert len(Sequences.open([tmp_path])) == 0


def test_one_token_cannot_be_packed(tmp_path):
    chosen = Sequences.open([write(tmp_path / "a", [([(1, 1)], 0)])])
    with pytest.raises(UserError, match="fewer than 2"):
        module.write_packed(tmp_path / "x.parquet", chosen, pack(chosen.lengths, 4, "concatenative", seed=0))
    assert not (tmp_path / "x.parquet").exists()


SIZED = st.integers(1, 200).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(1, size), max_size=60)))


def reference(order: list[int], lengths: list[int], size: int, best: bool) -> list[list[int]]:
    """Look at every bin for every item; the best has least space, the first was opened first."""
    bins: list[list[int]] = []
    for index in order:
        spaces = [size - sum(lengths[i] for i in members) for members in bins]
        fitting = [number for number, space in enumerate(spaces) if space >= lengths[index]]
        if not fitting:
            bins.append([index])
        else:
            bins[min(fitting, key=spaces.__getitem__) if best else fitting[0]].append(index)
    return bins


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None)
@given(SIZED, st.integers(0, 2**32))
def test_every_index_once_and_no_bin_too_full(algorithm, sized, seed):
    size, lengths = sized
    bins = pack(np.array(lengths, np.int64), size, algorithm, seed).lists()
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(members and sum(lengths[i] for i in members) <= size for members in bins)
    assert bins == pack(np.array(lengths, np.int32), size, algorithm, seed).lists()


@settings(deadline=None)
@given(SIZED, st.integers(0, 99))
def test_best_fit_decreasing_needs_as_many_bins_as_a_plain_search(sized, seed):
    size, lengths = sized
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    expected = reference(order, lengths, size, best=True)
    bins = pack(np.array(lengths, np.int64), size, "best_fit_decreasing", seed).lists()
    assert sorted(sum(lengths[i] for i in members) for members in bins) == sorted(
        sum(lengths[i] for i in members) for members in expected
    )


@settings(deadline=None)
@given(SIZED, st.integers(0, 99))
def test_first_fit_shuffle_is_first_fit_in_some_order(sized, seed):
    size, lengths = sized
    bins = pack(np.array(lengths, np.int64), size, "first_fit_shuffle", seed).lists()
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths)).tolist()
    expected = reference(order, lengths, size, best=False)
    assert sorted(bins) == sorted(expected)


def test_concatenative_keeps_the_order():
    assert pack(np.array([6, 4, 7, 3, 1]), 10, "concatenative", 0).lists() == [[0, 1], [2, 3], [4]]


def test_many_sequences_reach_the_known_bin_counts():
    random = np.random.default_rng(7)
    lengths = np.clip(np.exp(random.normal(np.log(600), 1.1, 20_000)).astype(np.int64), 16, 4096)
    floor = -(-int(lengths.sum()) // 4096)
    counts = {algorithm: len(pack(lengths, 4096, algorithm, 1)) for algorithm in ALGORITHMS}
    assert floor <= counts["best_fit_decreasing"] <= floor + 2
    assert counts["best_fit_decreasing"] < counts["first_fit_shuffle"] < counts["concatenative"]


def test_finished_bins_are_mixed_by_the_seed():
    lengths = np.arange(1, 301)
    one, other = (pack(lengths, 300, "best_fit_decreasing", seed).lists() for seed in (1, 2))
    assert one != other
    assert sorted(one) == sorted(other)
    longest = [max(members) for members in one]
    assert longest != sorted(longest, reverse=True)


@pytest.mark.parametrize(("length", "shown"), [(0, "0 tokens"), (11, "11 tokens")])
def test_a_length_that_cannot_be_packed_is_named(length, shown):
    with pytest.raises(UserError, match=f"sequence 1 has {shown}"):
        pack(np.array([5, length, 3]), 10, "best_fit_decreasing", 0)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(UserError) as caught:
        pack(np.array([1]), 10, "best_fit_decreasin", 0)
    assert "did you mean 'best_fit_decreasing'" in str(caught.value)


def test_nothing_packs_into_nothing():
    assert [pack(np.array([], np.int64), 10, algorithm, 0).lists() for algorithm in ALGORITHMS] == [[], [], [], []]
