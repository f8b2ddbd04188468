"""What the end of a Parquet file tells: its row groups, without reading a row."""

from functools import cache
from itertools import accumulate

from nemotron_data.sources.files import open_input
from nemotron_data.sources.remote import InputFile, reported
from nemotron_shared.errors import UserError


@cache
def row_groups(file: InputFile) -> tuple[int, ...]:
    """The rows of each row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reported(file.path):
        try:
            with open_input(file) as opened, pq.ParquetFile(opened) as table:
                return tuple(table.metadata.row_group(group).num_rows for group in range(table.num_row_groups))
        except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter: the name of a column
            raise not_parquet(file, error) from error


def wanted_groups(file: InputFile) -> tuple[int, int]:
    """The first row group with any of the file's `rows`, and the first behind them without."""
    counts = row_groups(file)
    if file.rows is None:
        return 0, len(counts)
    first, behind = file.rows
    ends = list(accumulate(counts))
    starts = [end - count for end, count in zip(ends, counts, strict=True)]
    return sum(end <= first for end in ends), sum(behind is None or start < behind for start in starts)


def not_parquet(file: InputFile, error: Exception) -> UserError:
    """What pyarrow said of a file that it cannot read."""
    return UserError(f"{file.path}: not a readable Parquet file: {error}", "fetch or write it again")
