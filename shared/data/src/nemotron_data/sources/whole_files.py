"""Read all rows of some files, one after another, in one process.

for row in read_rows(["corpus/*.jsonl", "books/"]):
    row.value["text"], row.file, row.line      # "Once upon", "corpus/a.jsonl", 17
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from nemotron_data.rejects import Rejects
from nemotron_data.sources.files import InputFile, expand
from nemotron_data.sources.reading import BadRow, Place, Range, Row, read_range
from nemotron_shared.errors import UserError

__all__ = ["BadRow", "ReadCounts", "Row", "read_rows"]


@dataclass(slots=True)
class ReadCounts:
    """What `read_rows` has seen so far."""

    rows: int = 0
    blank_lines: int = 0
    rejected: int = 0


def read_rows(
    paths: Sequence[str | Path],
    *,
    subset: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    on_bad: Literal["error", "reject"] = "error",
    rejects: Rejects | None = None,
    counts: ReadCounts | None = None,
) -> Iterator[Row]:
    """Rows of everything that `expand` finds at `paths`, in order, at most `limit` of them.

    A text file is one row, {"text": ...}. Blank lines are skipped and counted. With `on_bad="reject"` a bad line goes
    to `rejects`; otherwise it raises `UserError`, as do missing, unreadable and empty files and unknown extensions.
    """
    if (on_bad == "reject") != (rejects is not None):
        raise ValueError("on_bad='reject' and rejects belong together")
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} rows reads nothing", "give a number from 1, or none at all")
    files = expand(paths, subset=subset, split=split)
    return islice(_rows_of(files, rejects, counts or ReadCounts()), limit)


def _rows_of(files: list[InputFile], rejects: Rejects | None, counts: ReadCounts) -> Iterator[Row]:
    for file in files:
        seen_before = counts.rows + counts.rejected
        place = Place()
        for row in read_range(Range(file, 0, sys.maxsize), place):
            if isinstance(row, Row):
                counts.rows += 1
                yield row
            elif rejects is None:
                what = f"{row.file}:{row.line}: {row.reason}: {row.detail}\n  {row.snippet}"
                raise UserError(what, "put the line right or delete it, or let bad lines be rejected and counted")
            else:
                counts.rejected += 1
                rejects.add(row.file, row.line, row.reason, row.snippet, row.detail)
        counts.blank_lines += place.blank_lines
        if counts.rows + counts.rejected == seen_before:
            raise UserError(f"{file.path}: holds no rows", "remove it from the inputs, or write it again")
