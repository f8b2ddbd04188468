"""Read the rows of a file, of a part of it, or of a slice, and report exactly where a bad one is.

    for row in read_range(Range(file, 0, file.size)):
        row.value["text"], row.file, row.line      # "Once upon", "corpus/a.jsonl", 17

A range of a JSON lines file is a range of bytes, and a line belongs to the range in which it begins: ranges that cover
the file give every line exactly once. A range of a Parquet file counts row groups. Compressed files, JSON lists,
tables, texts and files in other encodings are a single range, read as a stream.

Slices have the syntax of the `datasets` library: train[1024:], train[-1024:], train[10%:20%]. Parquet records its row
counts, so only footers are fetched for the rows before a slice; other files are read up to its start. Files that are
entirely in the slice stay divisible; one that the slice cuts is read by a single worker.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Any

from nemotron_data.formats import fast_json
from nemotron_data.formats.fast_json import Fragment
from nemotron_data.rejects import Refused, snippet_of
from nemotron_data.sources.input_file import InputFile, format_of, reported
from nemotron_data.sources.json_rows import TOO_DEEP, RepeatedKey, is_of_table, parse_json, rows_of_list, within
from nemotron_data.sources.opening import open_input
from nemotron_data.sources.tables import (
    FULL_ROWS,
    not_parquet,
    open_table,
    row_groups,
    rows_at_once,
    table_rows,
    values_of,
    wanted_groups,
)
from nemotron_data.sources.text import UTF_8, convert, documents_of, encoding_of, open_text, open_utf8, shape_of
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError

NOT_UTF_8 = "invalid UTF-8"
NEWLINES = "end each line with a newline, not with a carriage return alone: tr '\\r' '\\n' < FILE > rows.jsonl"
ZEROS = "zero bytes", "a damaged file, or no text"
NULL = re.compile(rb":\s*null[\s,}]")
BLOCK_BYTES = 1 << 20
LONGEST_LINE = 256 << 20
"""Lines of more bytes are bad rows: with their parsed form they would not fit into a worker's memory."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a file: bytes of JSON lines, row groups of Parquet, or the whole file."""

    file: InputFile
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Row:
    """One record and its place.

    `line` counts from 1: from the start of its range in JSON lines, else in its file. In Parquet it is the number of
    the record, elsewhere the line where it begins.
    """

    value: dict[str, Any]
    file: str
    line: int
    raw: bytes | None = None
    """The original line, if the row is a line."""
    written: bytes | None = None
    """Its JSON, possibly of several lines; None if it was read from a table or a text."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that is not a row, and why."""

    file: str
    line: int
    why: Refused
    snippet: str


@dataclass(slots=True)
class Place:
    """Progress within a range."""

    bytes: int = 0
    lines: int = 0
    blank_lines: int = 0


def read_files(files: Iterable[InputFile]) -> Iterator[Row | BadRow]:
    """Records of whole files, one file after the other; see `read_range`."""
    for file in files:
        yield from read_range(whole_of(file))


def whole_of(file: InputFile) -> Range:
    """Range that covers the file's `rows`, leaving out row groups without any of them."""
    if format_of(file.path).content != "parquet":
        return Range(file, 0, file.size)
    return Range(file, *wanted_groups(file))


def read_range(part: Range, place: Place | None = None) -> Iterator[Row | BadRow]:
    """Yield the records of a range, in order; blank lines are skipped and counted in `place`.

    Raises:
        UserError: the file cannot be opened or read to its end.
    """
    readers = {"rows": _json_rows, "table": _table_rows, "parquet": _parquet_rows, "text": _documents}
    content, rows = format_of(part.file.path).content, part.file.rows
    with reported(part.file.path):
        records = readers[content](part, place or Place())
        if rows is not None:
            before = sum(row_groups(part.file)[: part.low]) if content == "parquet" else 0
            first, behind = (None if number is None else max(0, number - before) for number in rows)
            records = islice(records, first, behind)
        yield from records


def _json_rows(part: Range, place: Place) -> Iterator[Row | BadRow]:
    # only JSON lines in UTF-8 have several ranges, so a range that begins further on is of that kind
    if part.low == 0 and shape_of(part.file) != "lines":
        yield from _listed_rows(part, place)
        return
    encoding = UTF_8 if part.low else encoding_of(part.file)
    name = part.file.path
    with open_input(part.file) if encoding == UTF_8 else open_utf8(part.file) as file:
        streamed = encoding != UTF_8 or format_of(name).compression
        for line in _whole_lines(file, place) if streamed else _lines_of_range(file, part, place):
            place.lines += 1
            if place.lines == 1 and part.low == 0 and line is not None:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line is None:
                yield _too_long(name, place.lines)
            elif line.isspace() or not line:
                place.blank_lines += 1
            else:
                yield json_row(name, place.lines, line)


def _listed_rows(part: Range, place: Place) -> Iterator[Row | BadRow]:
    """Items of a JSON list."""
    name = part.file.path
    with open_text(part.file) as file:
        for place.lines, text in rows_of_list(file, name, LONGEST_LINE):
            place.bytes += len(text)
            row = json_row(name, place.lines, text.encode("utf-8", "surrogatepass"))
            # an item may span several lines, so it has no raw line
            yield replace(row, raw=None) if isinstance(row, Row) else row


def _table_rows(part: Range, place: Place) -> Iterator[Row | BadRow]:
    name = part.file.path
    with open_text(part.file) as file:
        for place.lines, cells in table_rows(file, name, LONGEST_LINE):
            if isinstance(cells, str):
                yield BadRow(name, place.lines, Refused("ragged row", cells, FULL_ROWS), "")
            elif not cells:
                place.blank_lines += 1
            elif any("\0" in cell for cell in cells.values()):
                yield BadRow(name, place.lines, Refused(*ZEROS), snippet_of(str(cells)))
            else:
                place.bytes += sum(map(len, cells.values())) + len(cells)
                yield Row(cells, name, place.lines)


def _lines_of_range(file: IO[bytes], part: Range, place: Place) -> Iterator[bytes | None]:
    """Lines that begin in [`low`, `high`), without their newline; None for one that is too long."""
    if part.low:
        file.seek(part.low - 1)
        _skip_line(file)
    at = file.tell()
    while at < part.high and (block := file.read(min(BLOCK_BYTES, part.high - at))):
        at += len(block)
        complete = block.endswith(b"\n")
        lines = block.split(b"\n")
        last = lines.pop()
        place.bytes += len(block)
        yield from lines
        if not complete:
            rest, skipped = _rest_of_line(file, len(last))
            at += skipped
            place.bytes += skipped
            yield None if rest is None else last + rest


def _whole_lines(file: IO[bytes], place: Place) -> Iterator[bytes | None]:
    """Lines of a stream that cannot seek. `place.bytes` counts decompressed bytes."""
    last = b""
    while block := file.read(BLOCK_BYTES):
        place.bytes += len(block)
        lines = (last + block).split(b"\n")
        last = lines.pop()
        yield from lines
        if len(last) > LONGEST_LINE:
            last = b""
            _skip_line(file)
            yield None
    if last:
        yield last


def _rest_of_line(file: IO[bytes], before: int) -> tuple[bytes | None, int]:
    """Rest of a line without its newline, None if it is too long; and the number of bytes read."""
    rest = file.readline(LONGEST_LINE - before + 1) if before <= LONGEST_LINE else b""
    if before + len(rest) <= LONGEST_LINE or rest.endswith(b"\n"):
        return rest.removesuffix(b"\n"), len(rest)
    return None, len(rest) + _skip_line(file)


def _skip_line(file: IO[bytes]) -> int:
    """Skip past the next newline, in bounded memory; returns the number of bytes read."""
    skipped = 0
    while piece := file.readline(BLOCK_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def json_row(name: str, number: int, line: bytes) -> Row | BadRow:
    """Parse one nonblank line."""
    try:
        value = parse_json(line)
    except RepeatedKey as error:
        return BadRow(
            name, number, Refused("a key twice", f"'{error}'", "give it another name"), snippet_of(line.strip())
        )
    except (ValueError, RecursionError) as error:
        return _unparsed(name, number, line, error)
    if isinstance(value, dict):
        if NULL.search(line) and is_of_table(value):
            # keep the digits of numbers, both in the parsed row and when it is written again
            line = fast_json.dumps(within(json.loads(line, parse_int=Fragment, parse_float=Fragment)))
            value = within(value)
        return Row(value, name, number, line, line)
    detail = f"one object per line is needed, not one {type(value).__name__}"
    return BadRow(name, number, Refused("not a JSON object", detail), snippet_of(line.strip()))


def _unparsed(name: str, number: int, line: bytes, error: Exception) -> BadRow:
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        detail = f"byte {wrong.start + 1:,} of the line is 0x{line[wrong.start]:02x}"
        return BadRow(name, number, Refused(NOT_UTF_8, detail, convert(name)), snippet_of(line.strip()))
    detail = TOO_DEEP if isinstance(error, RecursionError) else str(error)
    why = Refused("malformed JSON", detail, NEWLINES if b"}\r{" in line else None)
    return BadRow(name, number, why, snippet_of(line.strip()))


def _documents(part: Range, place: Place) -> Iterator[Row | BadRow]:
    name = part.file.path
    with open_text(part.file) as file:
        for place.lines, text in documents_of(part.file, file, LONGEST_LINE):
            place.bytes += len(text)
            if len(text) > LONGEST_LINE:
                yield _too_long(name, place.lines, "document")
            elif not text.strip():
                yield BadRow(name, place.lines, Refused("empty document", "nothing but white space"), "")
            elif "\0" in text:
                yield BadRow(name, place.lines, Refused(*ZEROS), snippet_of(text))
            else:
                yield Row({"text": text}, name, place.lines)


def _parquet_rows(part: Range, place: Place) -> Iterator[Row | BadRow]:
    import pyarrow as pa

    name = part.file.path
    try:
        with open_table(part.file) as (file, table):
            _require_unique(table.schema_arrow.names, name)
            groups = range(part.low, min(part.high, table.num_row_groups))
            place.lines = sum(table.metadata.row_group(group).num_rows for group in range(part.low))
            for group in groups:
                rows = rows_at_once(file, table.metadata.row_group(group))
                for batch in table.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
                    for value in values_of(batch, LONGEST_LINE):
                        place.lines += 1
                        yield _parquet_row(name, place.lines, value)
                place.bytes += table.metadata.row_group(group).total_byte_size
    except (pa.ArrowException, UnicodeDecodeError) as error:  # UnicodeDecodeError: from a column name
        raise not_parquet(part.file, error) from error


def _parquet_row(name: str, number: int, value: dict[str, Any] | str | None) -> Row | BadRow:
    if value is None:
        return _too_long(name, number)
    if isinstance(value, str):
        return BadRow(name, number, Refused("a value that cannot be read", value), "")
    return Row(value, name, number)


def _too_long(name: str, number: int, what: str = "line") -> BadRow:
    return BadRow(name, number, Refused(f"{what} too long", f"more than {LONGEST_LINE >> 20} MiB"), "")


def _require_unique(columns: list[str], name: str) -> None:
    """Refuse duplicate column names, because a row is an object and would lose one of them."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise UserError(f"{name}: has the column {', '.join(twice)} twice", "give every column a different name")


FORM = re.compile(r"([^\[\]]+)\[(-?\d+)?(%)?:(-?\d+)?(%)?\]")
WRITE = "write train[1024:], train[:1024], train[-1024:] or train[10%:20%]"


@dataclass(frozen=True)
class Slice:
    """Rows from `low` up to but not including `high`; None means from the first, or to the last."""

    text: str
    low: int | None
    high: int | None
    percent: bool

    def bounds(self, total: int) -> tuple[int, int]:
        """Row numbers of the slice in a split of `total` rows."""
        low, high = 0 if self.low is None else self.low, 100 if self.percent else total
        high = high if self.high is None else self.high
        if self.percent:
            low, high = round(low * total / 100), round(high * total / 100)
        first, behind = (number + total if number < 0 else number for number in (low, high))
        return max(0, first), min(total, behind)


def parse_split(path: str, text: str | None) -> tuple[str | None, Slice | None]:
    """`train[1024:]` -> "train" and its slice; None for a name alone.

    Raises:
        UserError: malformed.
    """
    if text is None or not any(sign in text for sign in "[]"):
        return text, None
    match = FORM.fullmatch(text)
    if match is None:
        raise UserError(f"{path}: split '{text}': not a slice of rows", WRITE)
    name, low, low_percent, high, high_percent = match.groups()
    # a number in each nonempty place, and the same unit in all of them
    units = {bool(unit) for number, unit in ((low, low_percent), (high, high_percent)) if number or unit}
    if (low_percent and not low) or (high_percent and not high) or len(units) > 1:
        raise UserError(f"{path}: split '{text}': rows in one place and percent in the other", WRITE)
    bounds = [None if number is None else int(number) for number in (low, high)]
    if units == {True} and any(number is not None and abs(number) > 100 for number in bounds):
        raise UserError(f"{path}: split '{text}': more than 100 percent", WRITE)
    return name, Slice(text, *bounds, percent=units == {True})


def rows_of(path: str, files: Sequence[InputFile], asked: Slice) -> list[InputFile]:
    """The files, in order, that hold rows of the slice; files that it cuts carry their row range.

    Raises:
        UserError: the slice is empty.
    """
    low, high = asked.low or 0, asked.high
    if asked.percent or low < 0 or (high or 0) < 0:
        low, high = asked.bounds(sum(count_rows(file) for file in files))
    chosen: list[InputFile] = []
    before = 0
    for file in files:
        first, behind = max(0, low - before), None if high is None else high - before
        if behind is not None and behind <= first:
            break
        # count only as far as needed to find both ends; the last file's end is found when it is read
        is_last = file is files[-1] and format_of(file.path).content != "parquet"
        known = is_last or (first == 0 and behind is None)
        count = None if known else count_rows(file, first + 1 if behind is None else behind)
        if count is None or count > first:
            is_whole = first == 0 and (behind is None or (count is not None and count < behind))
            chosen.append(file if is_whole else replace(file, rows=(first, behind)))
        before += count or 0
    if not chosen:
        empty = high is not None and high <= low
        has = "it ends before it begins" if empty else f"there are {before:,} rows"
        raise UserError(f"{path}: split '{asked.text}': holds no row", has)
    return chosen


def count_rows(file: InputFile, most: int | None = None) -> int:
    """Number of rows of a file, up to `most`; without reading them if the format records it."""
    if format_of(file.path).content == "parquet":
        count = sum(row_groups(file))
        return count if most is None else min(most, count)
    if most is None:
        say(f"{file.path}: read once to count its rows")
    return sum(1 for _ in islice(read_files([file]), most))
