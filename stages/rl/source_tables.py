"""Single rows of a source set, by number, out of Parquet files of any size.

    SourceTable(files).row(17)     # ([{"role": "user", "content": "Solve ... 2+2?"}], {"ground_truth": "4"})

Only the two columns that are needed are read, one row group at a time, and the groups used last are kept.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nemotron_shared.atomic import open_atomic
from nemotron_shared.data.files import InputFile, expand, local_file, open_input
from nemotron_shared.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

COLUMNS = ["prompt", "reward_model"]
KEPT_BYTES = 48 << 20
"""Decoded row groups that a worker keeps."""
LARGE_GROUP_BYTES = 16 << 20
LARGE_GROUP_ROWS = 1 << 15
"""A row group beyond either is cut up first. Rows count too: texts that repeat take few bytes until decoded."""
ROWS_PER_GROUP = 1024


def source_files(place: str, split: str) -> list[InputFile]:
    """The Parquet files of a source set: of a data set of the hub, of a local folder, or the very file.

    Raises:
        UserError: there is none.
    """
    if "://" in place:
        files = expand([place], split=split if place.startswith("hf://") else None)
        return [file for file in files if file.path.endswith(".parquet")] or _no_files(place, ["*.parquet"])
    return [local_file(file) for file in _local_files(Path(place).expanduser(), split)]


def _local_files(place: Path, split: str) -> list[Path]:
    """Published data sets keep a split in one of a few places; the first that holds a file counts."""
    if place.is_file():
        return [place]
    names = (f"data/{split}-*", "data/*", f"{split}/*", f"default/{split}/*", "*")
    patterns = [f"{name}.parquet" for name in names]
    return next(filter(None, (sorted(place.glob(pattern)) for pattern in patterns)), []) or _no_files(place, patterns)


def _no_files(place: object, patterns: list[str]) -> NoReturn:
    raise UserError(f"{place}: no Parquet file of a source set is there", f"looked for {', '.join(patterns)}")


class SourceTable:
    """The rows of some Parquet files, numbered through from 0 in the order of the files.

    Nothing is opened before the first row is asked for.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        self._groups: list[tuple[pq.ParquetFile, int]] = []
        self._ends: list[int] = []
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()

    def row(self, index: int) -> tuple[Any, Any]:
        """`prompt` and `reward_model` of a row.

        Raises:
            IndexError: there is no such row.
            UserError: a file cannot be read, or has no such columns.
        """
        if not self._ends:
            self._open()
        count = self._ends[-1] if self._ends else 0
        if not 0 <= index < count:
            raise IndexError(f"row {index} of {count:,} rows, counted from 0")
        number = bisect_right(self._ends, index)
        group = self._group(number)
        row = group.slice(index - (self._ends[number] - group.num_rows), 1).to_pylist()[0]
        return row[COLUMNS[0]], row[COLUMNS[1]]

    def _open(self) -> None:
        tables = [_opened(file) for file in self._files]
        self._groups = [(table, group) for table in tables for group in range(table.num_row_groups)]
        self._ends = list(accumulate(table.metadata.row_group(group).num_rows for table, group in self._groups))

    def _group(self, number: int) -> "pa.Table":
        """A decoded row group; the ones that were not used for longest make room."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        table, group = self._groups[number]
        while self._kept and sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES - LARGE_GROUP_BYTES:
            self._kept.popitem(last=False)
        with _readable(table):
            self._kept[number] = table.read_row_group(group, columns=COLUMNS, use_threads=False)
        return self._kept[number]


def _opened(file: InputFile) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    with _readable(file.path):
        table = pq.ParquetFile(open_input(file))
    if missing := [column for column in COLUMNS if column not in table.schema_arrow.names]:
        raise UserError(
            f"{file.path}: has no column '{missing[0]}'",
            f"data_prep.placeholder_sources names Parquet files with the columns {' and '.join(COLUMNS)}",
        )
    return table


@contextmanager
def _readable(what: object) -> Generator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{what}: not a readable Parquet file: {error}", "fetch or write it again") from error


def in_small_groups(files: Iterable[InputFile], folder: Path, say: Callable[[str], None]) -> list[Path | None]:
    """For each file whose row groups are too large to read for one row, a copy in `folder` with small ones.

    Returns:
        The copy, or None where the file serves as it is, in the order of `files`.
    """
    copies: list[Path | None] = []
    for number, file in enumerate(files):
        table = _opened(file)
        if not any(_is_large(table, group) for group in range(table.num_row_groups)):
            copies.append(None)
            continue
        say(f"{file.path}: its row groups are too large to read for single rows; cutting them up")
        copy = folder / f"{number:06d}.parquet"
        _cut_up(table, copy)
        copies.append(copy)
    return copies


def _is_large(table: "pq.ParquetFile", group: int) -> bool:
    metadata = table.metadata.row_group(group)
    chunks = (metadata.column(i) for i in range(metadata.num_columns))
    wanted = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in COLUMNS]
    return (
        metadata.num_rows > LARGE_GROUP_ROWS
        or sum(chunk.total_uncompressed_size for chunk in wanted) > LARGE_GROUP_BYTES
    )


def _cut_up(table: "pq.ParquetFile", target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([table.schema_arrow.field(column) for column in COLUMNS])
    with open_atomic(target) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in table.iter_batches(batch_size=ROWS_PER_GROUP, columns=COLUMNS, use_threads=False):
            writer.write_batch(batch.select(COLUMNS), row_group_size=ROWS_PER_GROUP)
