"""Look at a few rows before processing all of them: to choose settings, and to find errors early."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from nemotron_data.prep.plan import Shard
from nemotron_data.prep.reader import TOLERATE, or_tolerate, row_error
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import Part, is_synthetic, own_rows
from nemotron_data.sources.input_file import InputFile, format_of, is_remote, no_rows
from nemotron_data.sources.reading import NOT_UTF_8, BadRow, Row, read_files, read_range
from nemotron_data.sources.text import require_text
from nemotron_data.split import share_of_last
from nemotron_shared.config.data import SourceSection
from nemotron_shared.config.files import Choice
from nemotron_shared.system.errors import Finding, UserError, note

SHARDS = 8
ROWS = 24
BYTES = 32 << 10


def sample_rows(shards: Sequence[Shard]) -> Iterator[tuple[Shard, Row]]:
    """Up to 24 rows from the start of each of up to 8 shards, evenly spread; skips bad rows."""
    count = min(SHARDS, len(shards))
    for shard in (shards[i * len(shards) // count] for i in range(count)):
        rows: list[Row] = []
        for part in shard.ranges[:ROWS]:
            if len(rows) >= ROWS:
                break
            form = format_of(part.file.path)
            if form.content == "rows" and not form.compression and part.file.rows is None:
                part = replace(part, high=min(part.high, part.low + BYTES))
            rows += [row for row in islice(read_range(part), ROWS) if isinstance(row, Row)]
        yield from ((shard, row) for row in rows[:ROWS])


Settings = TypeVar("Settings", bound=SourceSection)
LOOKED_AT = 2000
MOST_FILES, FIRST_ROWS = 100, 10
"""Files that a dry run looks at, and rows of each."""
MOST_CHARACTERS = 16 << 20
FEWEST_TO_HOLD_OUT = 100
"""With fewer rows, a held-out share would be too small to measure anything, and lost for training."""
FEWEST_HELD_OUT, HELD_OUT = 20, 0.1
"""The larger of the number and the share is held out."""


def first_rows(section: SourceSection) -> Iterator[Row]:
    """First 2,000 readable rows; fewer if they are long, to save time.

    Raises:
        UserError: an error that would also end the preparation: a file is missing, of an unknown kind, unreadable or
            without rows; or a row is bad and `on_bad_row` is error.
    """
    characters = 0
    rows = (row for file in own_rows(section) for row in _rows_of(file, section))
    for count, row in enumerate(islice(rows, LOOKED_AT), start=1):
        yield row
        characters += len(str(row.value) if row.raw is None else row.raw)
        if characters > MOST_CHARACTERS and count >= FEWEST_TO_HOLD_OUT:
            return


def _rows_of(file: InputFile, section: SourceSection) -> Iterator[Row]:
    empty = True
    for row in read_files([file]):
        empty = False
        if isinstance(row, Row):
            yield row
        elif section.on_bad_row == "error":
            raise _unread(row, file)
    if empty and section.sample is None:
        raise no_rows(file.path)


def _unread(row: BadRow, file: InputFile) -> UserError:
    """Error for a record that is not a row."""
    if row.why.reason == NOT_UTF_8:
        require_text(file)
    return row_error(row, f"{row.why.reason}: {row.why.detail}", or_tolerate(row.why.finding.remedy))


def look_ahead(
    parts: Iterable[Part[Settings]],
    reader_of: Callable[[Part[Settings]], Callable[[Row], object]],
    whole: Callable[[Part[Settings], Sequence[InputFile]], object] = lambda part, files: None,
) -> Iterator[Finding]:
    """Find errors in the first rows that would end the preparation; checks up to 100 local files.

    Args:
        reader_of: for a data set, the first step of the preparation on each row; raises for an unusable one.
        whole: what the preparation checks for all files of a data set before that.
    """
    left = MOST_FILES
    for part in parts:
        files, elsewhere = _on_this_machine(part.settings)
        if elsewhere:
            yield note(f"not on this machine, so that none of its rows was looked at: {', '.join(elsewhere)}")
        looked_at, left = files[:left], max(0, left - len(files))
        if len(looked_at) < len(files):
            name = part.settings.source if isinstance(part.settings.source, str) else part.name
            yield note(f"{name}: of {len(looked_at):,} of the {len(files):,} files the first rows were looked at")
        try:
            if looked_at and not elsewhere:
                whole(part, files)
        except UserError as error:
            yield error.finding
            continue
        # with `sample`, all files are one input, which may end before the second of them
        inputs = [[file] for file in looked_at] if part.settings.sample is None else [looked_at]
        faults = (_first_fault(some, part.settings, reader_of(part)) for some in inputs)
        yield from (fault.finding for fault in faults if fault is not None)


def rows_ahead(parts: Iterable[Part[Settings]], synthetic: int, most: int) -> int | None:
    """Number of rows to prepare, counting up to `most`; None if some are not on this machine.

    Args:
        synthetic: number of rows of the synthetic data.
    """
    count = 0
    for part in parts:
        files, elsewhere = _on_this_machine(part.settings)
        if elsewhere:
            return None
        rows = synthetic if is_synthetic(part.settings.source) else sum(1 for _ in islice(read_files(files), most))
        count += rows if part.settings.sample is None else min(rows, part.settings.sample)
        if count >= most:
            break
    return min(count, most)


def _first_fault(files: Sequence[InputFile], section: SourceSection, read: Callable[[Row], object]) -> UserError | None:
    """First error within the first rows of these files, or None."""
    left = FIRST_ROWS if section.sample is None else min(FIRST_ROWS, section.sample)
    try:
        for file in files:
            before = left
            for row in islice(read_files([file]), before):
                left -= 1
                if section.on_bad_row == "error":
                    _require_usable(row, file, read)
            if left == before and section.sample is None:  # with `sample` we cannot tell; see `finish`
                raise no_rows(file.path)
            if not left:
                break
    except UserError as error:
        return error
    return None


def _require_usable(row: Row | BadRow, file: InputFile, read: Callable[[Row], object]) -> None:
    """Raise the preparation's error for an unusable row, with its place."""
    if isinstance(row, BadRow):
        raise _unread(row, file)
    try:
        read(row)
    except Refused as refused:
        raise row_error(row, str(refused), or_tolerate(refused.finding.remedy)) from refused
    except UserError as error:
        raise row_error(row, error.message, error.remedy or TOLERATE) from error


def _on_this_machine(section: SourceSection) -> tuple[list[InputFile], list[str]]:
    """Local files of a source, and its paths elsewhere; both are empty for synthetic data."""
    named = [section.source] if isinstance(section.source, str) else section.source or []
    elsewhere = [name for name in named if is_remote(name)]
    local = [name for name in named if not is_synthetic(name) and name not in elsewhere]
    return own_rows(section.model_copy(update={"source": local})) if local else [], elsewhere


def split_choice(buckets: Sequence[float], what: str) -> Choice:
    """Choose the shares of the splits: of the rows of the head, the larger of 20 and a tenth is held out, at most half.

    Args:
        buckets: of each row, as `nemotron_data.split` decides by it.
        what: name of the rows in messages.
    """
    count = len(buckets)
    wanted = max(FEWEST_HELD_OUT, round(HELD_OUT * count)) if count >= FEWEST_TO_HOLD_OUT else 0
    share, found = share_of_last(buckets, wanted, count // 2)
    if not wanted:
        why = f"{count} {what}: too few to hold some out"
    elif not found:
        why = f"{count:,} {what}, too many of them with one question to hold some out"
    else:
        why = f"{found:,} of {count:,} {what} held out, to judge on rows that were never taught"
    return Choice("data_prep.split", {"train": round(1 - share, 9), "valid": share, "test": 0.0}, why)
