"""Token sequences with loss masks, packed into the Parquet rows that trainers read.

A packed row, in the layout that Megatron-Bridge reads:

    input_ids     11 12 13 21 22  2 14 15 23  2     list<int32>
    loss_mask      0  0  1  1  1  0  0  1  1  0     list<uint8>: does the NEXT token count?
    seq_start_id   0                 6              list<int32>: where each sequence starts

`write_packed` is the only place that shifts the mask, by one inside each sequence. `labels_of` is aligned with the
logits, and so are the labels that every engine hands to its loss.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nemotron_data.formats.sequences import Sequences
from nemotron_data.packing import Bins
from nemotron_shared.system.atomic import open_atomic
from nemotron_shared.system.errors import UserError, did_you_mean

COLUMNS = {"input_ids": np.int32, "loss_mask": np.uint8, "seq_start_id": np.int32}
SCHEMA = pa.schema([(name, pa.list_(pa.from_numpy_dtype(dtype))) for name, dtype in COLUMNS.items()])
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
IGNORED = -100
REBUILD = "run data preparation again with --force"


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One pack: int32 ids and uint8 mask of equal length, int32 starts of the sequences in it."""

    input_ids: np.ndarray
    loss_mask: np.ndarray
    seq_start_id: np.ndarray

    def problem(self) -> str | None:
        """Violation of the layout, or None."""
        size, starts = len(self.input_ids), self.seq_start_id.astype(np.int64)
        if len(self.loss_mask) != size:
            return f"{size} ids but {len(self.loss_mask)} mask entries"
        if size and self.input_ids.min() < 0:
            return f"token id {self.input_ids.min()} is negative"
        if not len(starts) or starts[0] != 0:
            return "seq_start_id does not begin with 0"
        if (np.diff(np.append(starts, size)) < 2).any():
            return "seq_start_id does not rise by at least 2 tokens per sequence"
        if (self.loss_mask > 1).any():
            return "loss_mask holds other values than 0 and 1"
        if self.loss_mask[np.append(starts[1:], size) - 1].any():
            return "loss_mask counts a token beyond the end of a sequence, so it was not shifted"
        return None


def labels_of(row: PackedRow) -> np.ndarray:
    """int64 targets, one per input token: labels[j] is the token to predict at position j, or -100.

    They are aligned with the logits, so a loss function must not shift them again. Labels never cross from one sequence
    into the next: of the row above they are -100 -100 21 22 2 -100 -100 23 2 -100.
    """
    labels = np.full(len(row.input_ids), IGNORED, np.int64)
    counted = np.flatnonzero(row.loss_mask)
    labels[counted] = row.input_ids[counted + 1]
    return labels


def sequences_of(row: PackedRow) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids of each sequence, and which of them are learnt; the first one never is, for nothing comes before it."""
    ends = [*row.seq_start_id[1:].tolist(), len(row.input_ids)]
    for start, end in zip(row.seq_start_id.tolist(), ends, strict=True):
        learnt = np.zeros(end - start, bool)
        learnt[1:] = row.loss_mask[start : end - 1]  # the file's mask is about the next token
        if learnt.any():
            yield row.input_ids[start:end], learnt


def write_packed(
    path: Path, sequences: Sequences, bins: Bins, row_group_size: int = 1000, compression: str = "zstd"
) -> int:
    """Write one row for each bin of `sequences` to a Parquet file, one row group at a time.

    The file appears when all rows are written; equal rows give equal bytes.

    Returns:
        Number of tokens that count in the loss.

    Raises:
        UserError: no row, a sequence of fewer than 2 tokens, or an unknown compression.
    """
    if compression not in COMPRESSIONS:
        known = f"known are {', '.join(COMPRESSIONS)}"
        raise UserError(f"unknown compression '{compression}'", did_you_mean(compression, COMPRESSIONS, known))
    if not len(bins):
        raise UserError(f"{path}: no rows to write", "add sequences, or enlarge this split")
    if (sequences.lengths < 2).any():
        raise UserError(f"{path}: a sequence of fewer than 2 tokens cannot be packed", "drop it")
    counted = 0
    with (
        open_atomic(path) as file,
        # a dictionary would make the columns slower to write, and not smaller
        pq.ParquetWriter(file, SCHEMA, compression=compression, use_dictionary=False) as writer,
    ):
        for first in range(0, len(bins), row_group_size):
            columns, trained = _rows_of_bins(sequences, bins, first, min(first + row_group_size, len(bins)))
            writer.write_table(pa.table(columns, schema=SCHEMA), row_group_size=row_group_size)
            counted += trained
    return counted


def _array(values: np.ndarray, kind: np.dtype) -> pa.Array:
    """Convert without a copy. `pa.array` would import pandas, which takes a second."""
    plain = np.ascontiguousarray(values, kind)
    return pa.Array.from_buffers(pa.from_numpy_dtype(kind), len(plain), [None, pa.py_buffer(plain)])


def _rows_of_bins(sequences: Sequences, bins: Bins, first: int, last: int) -> tuple[list[pa.Array], int]:
    """Columns of rows `first` to `last`, and how many of their tokens count."""
    bounds = bins.bounds[first : last + 1]
    chosen = bins.order[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    ids, mask = sequences.gather(chosen)
    ends = np.cumsum(sequences.lengths[chosen])
    edges = np.concatenate([[0], ends])
    counts = np.empty_like(mask)
    counts[:-1] = mask[1:]
    counts[ends - 1] = 0
    rows = edges[bounds]
    starts = edges[:-1] - np.repeat(rows[:-1], np.diff(bounds))
    # list i of a column is values[cuts[i] : cuts[i + 1]]
    columns = {"input_ids": (ids, rows), "loss_mask": (counts, rows), "seq_start_id": (starts, bounds)}
    lists = [
        pa.ListArray.from_arrays(_array(cuts, np.dtype(np.int32)), _array(values, np.dtype(COLUMNS[name])))
        for name, (values, cuts) in columns.items()
    ]
    return lists, int(np.count_nonzero(counts))


def largest_id(path: Path) -> int | None:
    """The largest token id in a packed Parquet file, by its statistics alone; None where they do not say."""
    try:
        with pq.ParquetFile(path) as file:
            about = file.metadata
            columns = [number for number in range(about.num_columns)
                       if about.schema.column(number).path.split(".")[0] == "input_ids"]  # fmt: skip
            known = [about.row_group(group).column(number).statistics
                     for group in range(about.num_row_groups) for number in columns]  # fmt: skip
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None  # reading it says what is wrong
    if not known or not all(one is not None and one.has_min_max for one in known):
        return None
    return max(int(one.max) for one in known)


def read_packed(path: Path) -> list[PackedRow]:
    """Read and validate all rows of a packed Parquet file, ours or another tool's; raises `UserError`."""
    if not path.is_file():
        raise UserError(f"{path}: no such file", "run data preparation first")
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            for name in COLUMNS:
                kind = schema.field(name).type if name in schema.names else None
                if kind is None or not pa.types.is_list(kind) or not pa.types.is_integer(kind.value_type):
                    found = "is missing" if kind is None else f"is {kind}, not a list of integers"
                    raise UserError(f"{path}: column '{name}' {found}", f"{path.name} is not packed data; {REBUILD}")
            rows = [row for batch in file.iter_batches(columns=list(COLUMNS)) for row in _rows_of(path, batch)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: from a column name
        raise UserError(f"{path}: corrupt, not readable as packed Parquet: {error}", REBUILD) from error
    if not rows:
        raise UserError(f"{path}: holds no rows", f"take the file out, or {REBUILD}")
    for number, row in enumerate(rows):
        if problem := row.problem():
            raise UserError(f"{path}: row {number}: {problem}", REBUILD)
    return rows


def _rows_of(path: Path, batch: pa.RecordBatch) -> Iterator[PackedRow]:
    columns = []
    for name, dtype in COLUMNS.items():
        column = batch.column(name)
        values = column.flatten().cast(pa.from_numpy_dtype(dtype))  # raises rather than truncate a number
        if column.null_count or values.null_count:
            raise UserError(f"{path}: column '{name}' holds nulls", REBUILD)
        ends = np.cumsum(column.value_lengths().to_numpy())
        columns.append(np.split(values.to_numpy(), ends[:-1]))
    for ids, mask, starts in zip(*columns, strict=True):
        yield PackedRow(ids, mask, starts)
