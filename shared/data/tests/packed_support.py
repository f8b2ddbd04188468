"""Packed files for tests, made of bins that the test chooses."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemotron_data.formats import packed
from nemotron_data.formats.bin_idx import IndexedDatasetWriter
from nemotron_data.formats.packed import PackedRow
from nemotron_data.formats.sequences import Sequences
from nemotron_data.packing import Bins

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]


def add_document(writer: IndexedDatasetWriter, ids: np.ndarray) -> None:
    """Append one document."""
    writer.add_documents(ids, np.array([ids.size]))


def pack_row(sequences: Pairs) -> PackedRow:
    """One row of (ids, mask) pairs, where mask[k] = 1 means that token k itself counts."""
    shifted = [value for _, mask in sequences for value in (*mask[1:], 0)]
    starts = np.cumsum([0, *(len(ids) for ids, _ in sequences[:-1])])
    ids = [token for ids, _ in sequences for token in ids]
    return PackedRow(np.array(ids, np.int32), np.array(shifted, np.uint8), starts.astype(np.int32))


def write_packed(
    path: Path, sequences: Pairs, bins: Sequence[Sequence[int]], row_group_size: int = 1000, compression: str = "zstd"
) -> None:
    """One row for each bin of indices into `sequences`, which are (ids, mask) pairs as `pack_row` takes them."""
    lengths = np.array([len(ids) for ids, _ in sequences], np.int64)
    count = len(sequences)
    flat = Sequences(
        lengths=lengths,
        splits=np.zeros(count, np.uint8),
        folder=np.zeros(count, np.int32),
        low=np.cumsum(lengths) - lengths,
        ids=[np.array([token for ids, _ in sequences for token in ids], np.int32)],
        masks=[np.array([value for _, mask in sequences for value in mask], np.uint8)],
    )
    order = np.array([index for indices in bins for index in indices], np.int64)
    chosen = Bins(order, np.cumsum([0, *map(len, bins)]))
    packed.write_packed(path, flat, chosen, row_group_size, compression)
