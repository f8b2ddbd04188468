"""Packed SFT rows, read one row group at a time so that file size does not matter.

The stored loss mask is shifted: entry k says whether token k + 1 counts. It is shifted back here, within each
sequence, so that `trained` marks the tokens that a model learns to write:

    input_ids  <|im_start|> user 2+2? <|im_end|> <|im_start|> assistant 4 <|im_end|>
    loss_mask  0            0    0    0          0            1         1 0            as stored
    trained    0            0    0    0          0            0         1 1            as shown
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nemotron_app.inspect.examples import DataFile, Example, Split, TokenSequence
from nemotron_shared.errors import UserError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

COLUMNS = ("input_ids", "loss_mask", "seq_start_id")
BATCH_ROWS = 64
REBUILD = "run data preparation again with --force"


class PackedSplit(Split):
    """Rows of one packed Parquet file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._rows, tokens = [], 0
        with open_parquet(path) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                columns = [group.column(index) for index in range(group.num_columns)]
                self._rows.append(group.num_rows)
                tokens += sum(one.num_values for one in columns if one.path_in_schema.startswith("input_ids"))
        self._firsts = np.cumsum([0, *self._rows])
        self.files = [DataFile(path.stem, None, sum(self._rows), tokens)]

    def at(self, indices: Sequence[int]) -> list[Example]:
        """See the base class. Each required row group is read once."""
        wanted, found = set(indices), {}
        for group in sorted(set((np.searchsorted(self._firsts, list(wanted), side="right") - 1).tolist())):
            for example in self._group(group):
                if example.index in wanted:
                    found[example.index] = example
                if found.keys() >= wanted:
                    break
        return [found[index] for index in indices]

    def scan(self, budget: int) -> Iterator[Example]:
        """The first rows of row groups spread evenly over the file, with an equal share of the budget per group."""
        chosen = self._chosen(budget)
        for group in chosen:
            left = budget / len(chosen)
            for example in self._group(group):
                left -= example.tokens
                yield example
                if left < 0 and self.tokens > budget:
                    break

    def sample_note(self, budget: int) -> str | None:
        """See the base class."""
        if self.tokens <= budget:
            return None
        return f"the first rows of {len(self._chosen(budget)):,} of {len(self._rows):,} row groups"

    def _chosen(self, budget: int) -> range:
        return range(0, len(self._rows), max(1, math.ceil(self.tokens / max(1, budget))))

    def _group(self, group: int) -> Iterator[Example]:
        """Rows of a row group, in batches."""
        with open_parquet(self.path) as file:
            index = int(self._firsts[group])
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=list(COLUMNS)):
                arrays = []
                for name in COLUMNS:
                    column = batch.column(name)
                    values = column.flatten()
                    if column.null_count or values.null_count:
                        raise UserError(f"{self.path}: column '{name}' holds nulls", REBUILD)
                    arrays.append(np.split(values.to_numpy(), np.cumsum(column.value_lengths().to_numpy())[:-1]))
                for ids, mask, starts in zip(*arrays, strict=True):
                    yield row_example(self.name, index, ids, mask, starts)
                    index += 1


def row_example(split: str, index: int, ids: np.ndarray, mask: np.ndarray, starts: np.ndarray) -> Example:
    """A stored row, split into its sequences. A row with an invalid layout is shown as a single sequence."""
    from nemotron_data.formats.packed import PackedRow

    place = f"{split}, row {index}"
    problem = PackedRow(ids, mask, starts).problem()
    if len(mask) != len(ids):
        return Example(split, index, place, [TokenSequence(ids, np.zeros(len(ids), bool))], problem=problem)
    inner = starts.astype(np.int64)
    ordered = len(inner) and inner[0] == 0 and (np.diff(np.append(inner, len(ids))) >= 0).all()
    bounds = np.append(inner, len(ids)) if ordered else np.array([0, len(ids)])
    sequences = [TokenSequence(ids[low:high], trained_tokens(mask[low:high])) for low, high in pairwise(bounds)]
    return Example(split, index, place, sequences, problem=problem)


def trained_tokens(mask: np.ndarray) -> np.ndarray:
    """Which tokens of one sequence are trained on: its stored mask, shifted right by one, as bool.

    >>> trained_tokens(np.array([0, 1, 1, 0])).tolist()
    [False, False, True, True]
    """
    return np.concatenate([np.zeros(min(1, len(mask)), bool), mask[:-1].astype(bool)])


def open_parquet(path: Path) -> "pq.ParquetFile":
    """Open a Parquet file and require the columns of packed rows.

    Raises:
        UserError: columns are missing, or the file is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not readable as Parquet: {error}", REBUILD) from error
    if not set(COLUMNS) <= set(file.schema_arrow.names):
        raise UserError(
            f"{path}: not packed data: it lacks {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}",
            "inspect shows what data preparation has made; this may be what goes into it",
        )
    return file
