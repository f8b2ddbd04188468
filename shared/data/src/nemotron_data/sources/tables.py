"""Rows of tables: CSV, TSV, and the row groups and values of Parquet.

question;answer
"What is
2+2?";4                 ->  {"question": "What is\\n2+2?", "answer": "4"}

The first line of a CSV file names the fields, and a quoted cell may hold delimiters and newlines.
"""

import csv
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any, TextIO

from nemotron_data.sources.files import InputFile, open_input, reported
from nemotron_data.sources.json_rows import without_inner_nulls
from nemotron_data.sources.text import lines_up_to
from nemotron_shared.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

FULL_ROWS = "give each record as many cells as the header, and quotation marks to a cell that holds the delimiter"
DELIMITERS = (",", ";", "\t", "|")


def delimiter_of(header: str, name: str) -> str:
    """Delimiter between the cells of a header; a comma for a single column."""
    outside = "".join(header.split('"')[::2])
    counts = Counter({sign: outside.count(sign) for sign in ("\t",) if name.lower().rpartition(".tsv")[1]})
    counts = counts if any(counts.values()) else Counter({sign: outside.count(sign) for sign in DELIMITERS})
    return max(DELIMITERS, key=lambda sign: counts[sign])


def table_rows(file: TextIO, name: str, longest: int) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield line number and row of each record; an error text instead if it has too many or too few cells.

    Raises:
        UserError: the header names no fields or one twice, a quotation mark is never closed, or a record has more
            than `longest` characters.
    """
    csv.field_size_limit(longest)
    lines = _RecordLines(file, name, longest)
    above, first = 0, next(lines, "")
    while first and not first.strip():
        above, first = above + 1, next(lines, "")
    while first.count('"') % 2 and (more := next(lines, "")):  # a quoted name may contain newlines
        first += more
    if not first.strip():
        return
    delimiter = delimiter_of(first, name)
    try:
        header = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter, strict=True))]
    except csv.Error as error:
        raise UserError(
            f"{name}:{above + 1}: not a readable header: {error}", "write the names of the columns in one line"
        ) from error
    begun = above + (first.count("\n") or 1)
    if not header[0] and len(header) > 1:
        header[0] = "#"  # index column of a data frame
    if wrong := [cell or "(no name)" for cell, count in Counter(header).items() if count > 1 or not cell]:
        what = f"{name}:{above + 1}: the header has {', '.join(wrong)} " + (
            "twice" if wrong[0] != "(no name)" else "in it"
        )
        raise UserError(what, "give every column a different name in the first line")
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    line = lines.next_record(begun + 1)
    try:
        for cells in records:
            at, line = line, lines.next_record(begun + records.line_num + 1)
            if not cells or cells == [""]:
                yield at, {}
            elif len(cells) == len(header):
                yield at, dict(zip(header, cells, strict=True))
            else:
                yield at, f"{len(cells)} cells, and the header names {len(header)}"
    except csv.Error as error:
        remedy = "close the quotation mark, or double it where it belongs to the text"
        raise UserError(f"{name}:{line}: not a readable table: {error}", remedy) from error


class _RecordLines:
    """Lines of a file; raises an error if those of one record are too long."""

    def __init__(self, file: TextIO, name: str, longest: int) -> None:
        self._lines, self._name, self._longest = lines_up_to(longest, file), name, longest
        self._begun, self._held = 1, 0

    def __iter__(self) -> "_RecordLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._held += len(line)
        if self._held > self._longest:
            what = f"{self._name}:{self._begun}: a record of more than {self._longest >> 20} Mi characters"
            raise UserError(what, "close the quotation mark where one is open, or leave the record out")
        return line

    def next_record(self, begun: int) -> int:
        """Mark the start of a record at the next line, which has this number."""
        self._begun, self._held = begun, 0
        return begun


BATCH_ROWS = 256
BATCH_BYTES = 256 << 20
ORDINARY_DICTIONARY = 1 << 20
"""Columns up to this many bytes are not checked for large dictionaries."""
NO_VALUE = ValueError, OverflowError, LookupError
"""Errors for dates after the year 9999, text that is not UTF-8, and unknown time zones."""


@contextmanager
def open_table(file: InputFile) -> Generator[tuple[IO[bytes], "pq.ParquetFile"]]:
    """A Parquet file, as bytes and as a table, read by the calling thread alone.

    Arrow would read ahead in threads of its own. One that still lets go of a Python file while Python ends aborts the
    process after its work is done.
    """
    import pyarrow.parquet as pq

    with open_input(file) as opened, pq.ParquetFile(opened, pre_buffer=False) as table:
        yield opened, table


@cache
def row_groups(file: InputFile) -> tuple[int, ...]:
    """Number of rows of each row group."""
    import pyarrow as pa

    with reported(file.path):
        try:
            with open_table(file) as (_, table):
                return tuple(table.metadata.row_group(group).num_rows for group in range(table.num_row_groups))
        except (pa.ArrowException, UnicodeDecodeError) as error:  # UnicodeDecodeError: from a column name
            raise not_parquet(file, error) from error


def wanted_groups(file: InputFile) -> tuple[int, int]:
    """First row group with any of the file's `rows`, and the first one after them without."""
    counts = row_groups(file)
    if file.rows is None:
        return 0, len(counts)
    first, behind = file.rows
    ends = list(accumulate(counts))
    starts = [end - count for end, count in zip(ends, counts, strict=True)]
    return sum(end <= first for end in ends), sum(behind is None or start < behind for start in starts)


def rows_at_once(file: IO[bytes], group: "pq.RowGroupMetaData") -> int:
    """Number of rows of a group that fit into memory together if each is as large as a dictionary allows.

    A text that is stored once, in a dictionary, is expanded for every row that refers to it.
    """
    rows = max(1, group.num_rows)
    columns = [group.column(number) for number in range(group.num_columns)]
    row = sum(
        column.total_uncompressed_size // rows + _repeated(file, column) * -(-column.num_values // rows)
        for column in columns
        if column.physical_type == "BYTE_ARRAY"
    )
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row)))


def _repeated(file: IO[bytes], column: "pq.ColumnChunkMetaData") -> int:
    """Maximum bytes that a value of a column may have by referring to other values."""
    whole = column.total_uncompressed_size
    if "DELTA_BYTE_ARRAY" in column.encodings:  # values share a prefix with the previous one
        return whole
    if not column.has_dictionary_page:
        return 0
    if whole <= ORDINARY_DICTIONARY or column.dictionary_page_offset is None:
        return whole
    file.seek(column.dictionary_page_offset)
    return _page_size(file.read(16)) or whole


def _page_size(header: bytes) -> int | None:
    """Second field of a page header, its uncompressed size; each field is a tag and a zigzag number."""
    fields, position = [], 0
    while len(fields) < 2 and header[position : position + 1] == b"\x15":
        value, shift, position = 0, 0, position + 1
        while position < len(header):
            byte = header[position]
            value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
            if byte < 0x80:
                fields.append(value >> 1)
                break
    return fields[1] if len(fields) == 2 else None


def values_of(batch: "pa.RecordBatch", longest: int) -> Iterator[dict[str, Any] | str | None]:
    """Rows of a batch; None for rows of more than `longest` bytes, an error text for those that Python cannot hold."""
    import pyarrow as pa

    # Arrow calls a 32-bit float "float", and a 64-bit one "double"
    nested = [one for one in batch.schema if pa.types.is_nested(one.type)]
    floats = [one for one in nested if "float" in str(one.type)]
    structs = [one.name for one in nested if "struct" in str(one.type)]
    for row in _values_of(_with_short_numbers(batch), longest):
        if isinstance(row, dict):
            row |= {one.name: _with_short_inside(row[one.name], one.type) for one in floats}
            row |= {name: without_inner_nulls(row[name]) for name in structs}
        yield row


def _values_of(batch: "pa.RecordBatch", longest: int) -> Iterator[dict[str, Any] | str | None]:
    if batch.nbytes <= longest:
        try:
            yield from batch.to_pylist()
            return
        except NO_VALUE:
            pass  # at least one row of the batch
    for one in (batch.slice(number, 1) for number in range(batch.num_rows)):
        yield _value_of(one) if one.nbytes <= longest else None


def _with_short_numbers(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Convert 32-bit floats to their shortest digits, so that 0.1 does not become 0.10000000149011612.

    Whole numbers keep their value, because their shortest digits may end in zeros that the number does not have.
    """
    import pyarrow as pa

    for at, field in enumerate(batch.schema):
        if pa.types.is_float16(field.type) or pa.types.is_float32(field.type):
            column = batch.column(at)
            numbers = [_short(number) for number in column.to_numpy(zero_copy_only=False)]
            short = pa.array(numbers, pa.float64(), mask=column.is_null().to_numpy(False))
            batch = batch.set_column(at, field.name, short)
    return batch


def _short(number: "np.floating") -> float:
    return float(number) if float(number).is_integer() else float(str(number))


def _with_short_inside(value: Any, kind: "pa.DataType") -> Any:
    """The same for values inside lists, structures and maps."""
    import numpy as np
    import pyarrow as pa

    types = pa.types
    if value is None:
        return None
    if types.is_float16(kind) or types.is_float32(kind):
        return _short((np.float16 if types.is_float16(kind) else np.float32)(value))
    if types.is_struct(kind):
        return {one.name: _with_short_inside(value[one.name], one.type) for one in kind}
    if types.is_map(kind):
        return [(key, _with_short_inside(one, kind.item_type)) for key, one in value]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_with_short_inside(one, kind.value_type) for one in value]
    return value


def _value_of(row: "pa.RecordBatch") -> dict[str, Any] | str:
    found = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            found[name] = column[0].as_py()
        except NO_VALUE as error:
            return f"column '{name}' ({column.type}): {error}"
    return found


def not_parquet(file: InputFile, error: Exception) -> UserError:
    """Error for a file that pyarrow cannot read."""
    return UserError(f"{file.path}: not a readable Parquet file: {error}", "fetch or write it again")
