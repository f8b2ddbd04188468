"""Slices of splits by row number, in the syntax of the `datasets` library.

    train[1024:]   train[:1024]   train[-1024:]   train[10%:20%]

Parquet records its row counts, so only footers are fetched for the rows before the slice. Other files are read up to
the start of the slice, as they do not record where rows are; percent and negative numbers need a full count. Files
that are entirely in the slice stay divisible; one that the slice cuts is read by a single worker.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from nemotron_data.sources.files import format_of
from nemotron_data.sources.parquet import row_groups
from nemotron_data.sources.reading import read_files
from nemotron_data.sources.remote import InputFile
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say

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
