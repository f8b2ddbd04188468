"""Read rows from CSV and TSV: the first line names the fields, and a quoted cell may hold delimiters and newlines.

question;answer
"What is
2+2?";4                 ->  {"question": "What is\\n2+2?", "answer": "4"}
"""

import csv
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from nemotron_data.sources.long_lines import lines_up_to
from nemotron_shared.errors import UserError

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
        raise UserError(what, "give every column a name of its own in the first line")
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
