"""Packed files for tests, made of bins that the test chooses."""

from collections.abc import Sequence
from pathlib import Path

from nemotron_data.formats.packed import PackedWriter, pack_row

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]


def write_packed(
    path: Path, sequences: Pairs, bins: Sequence[Sequence[int]], row_group_size: int = 1000, compression: str = "zstd"
) -> None:
    """One row for each bin of indices into `sequences`, which are (ids, mask) pairs as `pack_row` takes them."""
    with PackedWriter(path, row_group_size, compression) as writer:
        for indices in bins:
            writer.add(pack_row([sequences[index] for index in indices]))
