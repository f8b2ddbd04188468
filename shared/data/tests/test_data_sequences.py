from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_support import pack_row

from nemotron_data.formats.packed import SPLITS, Sequences, SequenceWriter, read_packed, write_packed
from nemotron_data.packing import ALGORITHMS, pack
from nemotron_shared.errors import UserError

TOKENS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 1)), min_size=2, max_size=9)
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
        counted = write_packed(base / f"{split}.parquet", chosen, bins, group)
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
            write_packed(tmp_path / f"{size}-{algorithm}.parquet", chosen, bins, 50)
        files.append([(tmp_path / f"{size}-{algorithm}.parquet").read_bytes() for algorithm in ALGORITHMS])
    assert files[0] == files[1] == files[2]


def test_a_folder_without_sequences_is_no_error(tmp_path):
    with SequenceWriter(tmp_path):
        pass
    assert len(Sequences.open([tmp_path])) == 0


def test_one_token_cannot_be_packed(tmp_path):
    chosen = Sequences.open([write(tmp_path / "a", [([(1, 1)], 0)])])
    with pytest.raises(UserError, match="fewer than 2"):
        write_packed(tmp_path / "x.parquet", chosen, pack(chosen.lengths, 4, "concatenative", seed=0))
    assert not (tmp_path / "x.parquet").exists()
