"""A part of a split, by the numbers of its rows, written as the `datasets` library writes it.

    train[1024:]   train[:1024]   train[-1024:]   train[10%:20%]

Parquet says how many rows it has, so nothing before the part is fetched but the ends of files. Other files are read
up to where the part begins, as nothing in them says where a row is; percent and negative numbers need all of them
counted. A whole file of the part stays as it is; one that the part cuts is read by one worker.
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
    """The rows from `low` up to and without `high`; of None, from the first and to the last."""

    text: str
    low: int | None
    high: int | None
    percent: bool

    def bounds(self, total: int) -> tuple[int, int]:
        """The numbers of rows that are meant where there are `total`."""
        low, high = 0 if self.low is None else self.low, 100 if self.percent else total
        high = high if self.high is None else self.high
        if self.percent:
            low, high = round(low * total / 100), round(high * total / 100)
        first, behind = (number + total if number < 0 else number for number in (low, high))
        return max(0, first), min(total, behind)


def parse_split(path: str, text: str | None) -> tuple[str | None, Slice | None]:
    """`train[1024:]` -> "train" and its slice; a name alone has none.

    Raises:
        UserError: not of that form.
    """
    if text is None or not any(sign in text for sign in "[]"):
        return text, None
    match = FORM.fullmatch(text)
    if match is None:
        raise UserError(f"{path}: split '{text}': not a slice of rows", WRITE)
    name, low, low_percent, high, high_percent = match.groups()
    # a number in each place that is not empty, and one unit in all of them
    units = {bool(unit) for number, unit in ((low, low_percent), (high, high_percent)) if number or unit}
    if (low_percent and not low) or (high_percent and not high) or len(units) > 1:
        raise UserError(f"{path}: split '{text}': rows in one place and percent in the other", WRITE)
    bounds = [None if number is None else int(number) for number in (low, high)]
    if units == {True} and any(number is not None and abs(number) > 100 for number in bounds):
        raise UserError(f"{path}: split '{text}': more than 100 percent", WRITE)
    return name, Slice(text, *bounds, percent=units == {True})


def rows_of(path: str, files: Sequence[InputFile], asked: Slice) -> list[InputFile]:
    """The files, in order, that hold a part of their rows; those that it cuts say which rows.

    Raises:
        UserError: no row is of the part.
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
        # no more is counted than tells where the part begins and ends; the last file tells that when it is read
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
    """The rows of a file, or `most` where it has as many; without reading them where its format says."""
    if format_of(file.path).content == "parquet":
        count = sum(row_groups(file))
        return count if most is None else min(most, count)
    if most is None:
        say(f"{file.path}: read once to count its rows")
    return sum(1 for _ in islice(read_files([file]), most))
