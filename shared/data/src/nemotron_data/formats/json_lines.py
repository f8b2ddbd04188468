"""JSON lines as prepared data has them: one object per line, UTF-8, ended by a newline and by nothing else.

    {"question": "What is 3+4?", "expected": "7", "key": "3+4"}
    {"question": "What is 8-3?", "expected": "5", "key": "3-8"}

Users' own files are read by `sources.reading`, which knows compression, ranges and Parquet besides.
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
    """A line that is not blank. `number` counts every line from 1."""

    file: Path
    number: int
    raw: bytes

    @property
    def place(self) -> str:
        """`train.jsonl:17`, with the path of the file."""
        return f"{self.file}:{self.number}"

    def value(self, fault: str = "damaged row", remedy: str = REBUILD) -> dict[str, Any]:
        """The object that the line holds.

        Args:
            fault, remedy: what a line without one is called, and what helps.

        Raises:
            UserError: the line is not JSON, or no object.
        """
        value, wrong = parse(self.raw)
        if value is None:
            raise UserError(f"{self.place}: {fault} ({wrong})", remedy)
        return value


def parse(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object in a line; or None and why there is none.

    NaN and lone surrogates are accepted, as Python's own writer makes them: whoever looks at rows wants to see them.
    """
    try:
        value = fast_json.loads(raw)
    except json.JSONDecodeError:
        try:
            value = json.loads(raw.decode())  # bytes would be taken that are no UTF-8
        except (ValueError, RecursionError) as error:
            return None, str(error)
    return (value, "") if isinstance(value, dict) else (None, "no object")


def read_lines(file: Path) -> Iterator[Line]:
    """The lines of a file that are not blank, in constant memory.

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
    """Write rows to a file that appears when all are written; gives their number."""
    count = 0
    with open_atomic(file, "wb") as target:
        for row in rows:
            target.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count
