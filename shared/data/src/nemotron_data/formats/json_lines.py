"""JSON lines as in prepared data: one object per line, UTF-8, every line ended by a single newline.

    {"question": "What is 3+4?", "expected": "7", "key": "3+4"}
    {"question": "What is 8-3?", "expected": "5", "key": "3-8"}

To read user files, with compression, ranges and Parquet, use `sources.reading`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_data.formats import fast_json
from nemotron_shared.atomic import open_atomic
from nemotron_shared.errors import UserError

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
