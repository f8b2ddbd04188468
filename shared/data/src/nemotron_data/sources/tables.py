"""Rows of tables: CSV, TSV, and the row groups and values of Parquet.

question;answer
"What is
2+2?";4                 ->  {"question": "What is\\n2+2?", "answer": "4"}

The first line of a CSV file names the fields, and a quoted cell may hold delimiters and newlines.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any, TextIO

from pydantic_core import to_jsonable_python

from nemotron_data.formats.json_lines import WrittenInteger, WrittenList, WrittenNumber, WrittenObject
from nemotron_data.sources.input_file import InputFile, reported
from nemotron_data.sources.json_rows import TOO_DEEP, RepeatedKey, parse_json
from nemotron_data.sources.opening import open_input
from nemotron_data.sources.text import lines_up_to
from nemotron_shared.system.errors import UserError

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
JSON = "arrow.json"
"""Arrow's type for columns of JSON. The `datasets` library uses it for columns of mixed types, from 5.0 on."""
AS_TEXT = ("arrow.uuid",)
ALMOST_A_NUMBER = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[-+]?(?:NaN|nan|Inf|inf|Infinity))\s*")
Read = Callable[[Any], Any]
NO_VALUE = ValueError, OverflowError, LookupError
"""Errors for dates after the year 9999, text that is not UTF-8, and unknown time zones."""


@contextmanager
def open_table(file: InputFile) -> Generator[tuple[IO[bytes], "pq.ParquetFile"]]:
    """A Parquet file, as bytes and as a table, read by the calling thread alone.

    Arrow would read ahead in its own threads. One that still lets go of a Python file while Python ends aborts the
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
    batch = _with_short_numbers(batch)
    read = {one.name: (one.type, change) for one in batch.schema if (change := reader_of(one.type, nested=False))}
    for row in _values_of(batch, longest):
        yield _read(row, read) if isinstance(row, dict) and read else row


def _read(row: dict[str, Any], read: Mapping[str, tuple["pa.DataType", Read]]) -> dict[str, Any] | str:
    for name, (kind, change) in read.items():
        if row[name] is not None:
            try:
                row[name] = change(row[name])
            except (ValueError, RecursionError) as error:
                return _cannot(name, kind, error)
    return row


def _cannot(name: str, kind: "pa.DataType", error: Exception) -> str:
    return f"column '{name}' ({kind}): {TOO_DEEP if isinstance(error, RecursionError) else error}"


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


def reader_of(kind: "pa.DataType", nested: bool = True) -> Read | None:
    """What makes the value that somebody wrote of the one that Python shows of an Arrow type; None if they are alike.

    Args:
        nested: the value is inside a list, a structure or a map. Decimals and times that are a column of their own are
            left to who reads them.
    """
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name in AS_TEXT:
            return str
        return _of_json if kind.extension_name == JSON else reader_of(kind.storage_type, nested)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return reader_of(kind.value_type, nested)
    if types.is_float16(kind) or types.is_float32(kind):
        import numpy as np

        width = np.float16 if types.is_float16(kind) else np.float32
        return lambda number: _short(width(number))
    if types.is_temporal(kind) and nested:
        return _in_iso_form
    if types.is_map(kind):
        return _of_map(reader_of(kind.item_type))
    if types.is_struct(kind):
        return _of_structure({one.name: reader_of(one.type) for one in kind})
    if types.is_nested(kind) and not types.is_union(kind):  # a list of one of its five kinds
        return _of_list(reader_of(kind.value_type))
    return None


def _of_list(inside: Read | None) -> Read | None:
    if inside is None:
        return None
    read = inside
    return lambda values: [None if one is None else read(one) for one in values]


def _of_structure(fields: Mapping[str, Read | None]) -> Read:
    """Leave out what is null: it may only be a field of other rows."""
    changed = {name: change for name, change in fields.items() if change is not None}

    def read(value: dict[str, Any]) -> dict[str, Any]:
        value = {name: one for name, one in value.items() if one is not None}
        for name in changed.keys() & value.keys():
            value[name] = changed[name](value[name])
            if value[name] is None:  # in JSON
                del value[name]
        return value

    return read


def _of_map(inside: Read | None) -> Read:
    """An object of the pairs that Python shows; nulls in it are the row's."""

    def read(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        made = {_key(key): one if one is None or inside is None else inside(one) for key, one in pairs}
        if len(made) < len(pairs):
            raise ValueError("a map has a key twice")
        return made

    return read


def _key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int | float | Decimal | date):
        raise ValueError(f"a map with a key that is not text: {key!r}")
    return key if isinstance(key, str) else str(key)


def _in_iso_form(value: Any) -> str:
    """Dates, times and durations by ISO 8601, as in JSON Schema: 2024-01-02T03:04:05, P1DT5S."""
    if isinstance(value, timedelta):
        if getattr(value, "nanoseconds", 0):  # pandas' own, which is written with six digits
            raise ValueError(f"a duration with nanoseconds: {value}")
        return str(to_jsonable_python(value))
    return str(value.isoformat())


def _of_json(text: str) -> Any:
    """The value of an `arrow.json`.

    Raises:
        ValueError: no JSON, or with a key twice. A text that looks like a number, such as 007, stays a text.
    """
    try:
        value = parse_json(text.encode())
    except RepeatedKey as error:
        raise ValueError(f"JSON with the key '{error}' twice") from error
    except ValueError:
        if ALMOST_A_NUMBER.fullmatch(text):
            return text
        raise
    if isinstance(value, float):
        return WrittenNumber(text.strip())
    if type(value) is int:
        return WrittenInteger(value)
    if isinstance(value, dict | list):
        value = WrittenObject(value) if isinstance(value, dict) else WrittenList(value)
        value.written = text
    return value


def _value_of(row: "pa.RecordBatch") -> dict[str, Any] | str:
    found = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            found[name] = column[0].as_py()
        except NO_VALUE as error:
            return _cannot(name, column.type, error)
    return found


def not_parquet(file: InputFile, error: Exception) -> UserError:
    """Error for a file that pyarrow cannot read."""
    return UserError(f"{file.path}: not a readable Parquet file: {error}", "fetch or write it again")
