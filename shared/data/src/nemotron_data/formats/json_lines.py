"""JSON lines as in prepared data: one object per line, UTF-8, every line ended by a single newline.

    {"question": "What is 3+4?", "expected": "7", "key": "3+4"}
    {"question": "What is 8-3?", "expected": "5", "key": "3-8"}

Also numbers as text, spelled as in their file: 1.50 stays "1.50". To read user files, with compression, ranges and
Parquet, use `sources.reading`.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

from nemotron_data.formats import fast_json
from nemotron_shared.system.atomic import open_atomic
from nemotron_shared.system.errors import UserError


class WrittenNumber(Decimal):
    """A number that Python may spell differently than its text."""

    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        """Keep the text."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __format__(self, specifier: str, context: Context | None = None, /) -> str:
        return self.text if specifier in ("", "f") else super().__format__(specifier)

    def __reduce__(self) -> tuple[type["WrittenNumber"], tuple[str]]:
        return WrittenNumber, (self.text,)


class WrittenInteger(int):
    """An integer of a column of JSON; it may have been the text of one, see `spoken`."""


class WrittenObject(dict[str, Any]):
    """An object of a column of JSON, and its text; see `spoken`."""

    __slots__ = ("written",)
    written: str

    def __str__(self) -> str:
        return self.written


class WrittenList(list[Any]):
    """A list of a column of JSON, and its text; see `spoken`."""

    __slots__ = ("written",)
    written: str

    def __str__(self) -> str:
        return self.written


def spoken(value: Any) -> Any:
    """What somebody said in a value of a column of JSON: its text, except for turns and for parts of one.

    The `datasets` library gives a column of texts and other values the type JSON, and writes a text that is JSON as
    it is (5.2): the answer "4" is 4 in the file, and "[1, 2]" a list. Where only a text can stand, it was one.
    """
    if isinstance(value, WrittenObject):
        return value if value.keys() & {"role", "from"} else value.written
    if isinstance(value, WrittenList):
        objects = value and all(isinstance(one, dict) and one.keys() & {"role", "from", "type"} for one in value)
        return value if objects else value.written
    return str(value) if isinstance(value, WrittenNumber | WrittenInteger) else value


def is_number(value: Any) -> bool:
    """Whether a value is a number; not True or False."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_missing(value: Any) -> bool:
    """Whether a value is NaN or infinite, which is how tables represent missing numbers."""
    return isinstance(value, float) and not math.isfinite(value)


def text_of(value: str | float | Decimal) -> str:
    """Text unchanged, or a number from a table as text; a decimal with all its digits and without exponent."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def with_numbers_as_written(row: dict[str, Any], written: bytes | None) -> dict[str, Any]:
    """Replace the numbers among a row's own values by text; rows from tables are returned unchanged.

    Args:
        written: the JSON of the row, if there is one: a float has lost digits beyond its 17 and trailing zeros.
    """
    numbers = [name for name, value in row.items() if is_number(value)]
    if written is None or not numbers:
        return row
    texts = json.loads(written, parse_int=str, parse_float=str)
    return {**row, **{name: texts[name] for name in numbers}}


REBUILD = "prepare the data again with --force"


@dataclass(frozen=True, slots=True)
class Line:
    """A nonblank line. `number` counts all lines from 1."""

    file: Path
    number: int
    raw: bytes

    @property
    def place(self) -> str:
        """`train.jsonl:17`, with the path of the file."""
        return f"{self.file}:{self.number}"

    def value(self, fault: str = "damaged row", remedy: str = REBUILD) -> dict[str, Any]:
        """Parse the object in this line.

        Args:
            fault: name for an invalid line, in the error.
            remedy: remedy for the error.

        Raises:
            UserError: the line is not JSON, or not an object.
        """
        value, wrong = parse(self.raw)
        if value is None:
            raise UserError(f"{self.place}: {fault} ({wrong})", remedy)
        return value


def parse(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the object in a line, or None and the reason why it cannot be read.

    NaN and lone surrogates are accepted, as Python's own writer makes them, so that such rows can be inspected.
    """
    try:
        value = fast_json.loads(raw)
    except json.JSONDecodeError:
        try:
            value = json.loads(raw.decode())  # from bytes, json would also accept text that is not UTF-8
        except (ValueError, RecursionError) as error:
            return None, str(error)
    return (value, "") if isinstance(value, dict) else (None, "no object")


def read_lines(file: Path) -> Iterator[Line]:
    """Stream the nonblank lines of a file, in constant memory.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        # binary: text mode would also end lines at a lone carriage return
        with file.open("rb") as lines:
            for number, raw in enumerate(lines, start=1):
                if raw.strip():
                    yield Line(file, number, raw)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}", REBUILD) from error


def write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows to a file that appears once all are written; returns the number of rows."""
    count = 0
    with open_atomic(file, "wb") as target:
        for row in rows:
            target.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count
