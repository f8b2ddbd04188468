"""The first rows of a person's files, to choose settings by, and what of so few or many rows is held out."""

from collections.abc import Iterable, Iterator
from itertools import islice

from nemotron_data.prep.reader import or_tolerate, row_error
from nemotron_data.sources.encoding import require_text
from nemotron_data.sources.files import InputFile, no_rows
from nemotron_data.sources.reading import NOT_UTF_8, BadRow, Row, read_files
from nemotron_data.sources.remote import is_remote
from nemotron_data.sources.rows import SYNTHETIC, own_rows
from nemotron_shared.config.data import SourceSection
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.choices import Choice

LOOKED_AT = 2000
MOST_FILES = 100
MOST_CHARACTERS = 16 << 20
FEWEST_TO_HOLD_OUT = 100
"""A share of fewer rows would tell nothing, and cost what they teach."""
HELD_OUT = 0.05


def first_rows(section: SourceSection) -> Iterator[Row]:
    """The first 2,000 rows that can be read; of long ones fewer, for the sake of time.

    Raises:
        UserError: what would end the preparation, too: a file is missing, of no known kind, cannot be read or holds
            no rows; or a row is bad and `on_bad_row` says error.
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
            if row.reason == NOT_UTF_8:
                require_text(file)
            raise row_error(row, f"{row.reason}: {row.detail}", or_tolerate(row.remedy))
    if empty:
        raise no_rows(file.path)


def unreadable(sections: Iterable[SourceSection]) -> list[UserError]:
    """What a first row tells that would end the preparation: of each file on this machine, up to 100 of them."""
    files = ((file, section) for section in sections for file in _local_files(section))
    found = []
    for file, section in islice(files, MOST_FILES):
        try:
            row = next(read_files([file]), None)
            if row is None and getattr(section, "sample", None) is None:  # of a sample nobody can tell; see `finish`
                raise no_rows(file.path)
            if isinstance(row, BadRow) and section.on_bad_row == "error":
                raise row_error(row, f"{row.reason}: {row.detail}", or_tolerate(row.remedy))
        except UserError as error:
            found.append(error)
    return found


def _local_files(section: SourceSection) -> list[InputFile]:
    named = [section.source] if isinstance(section.source, str) else section.source or []
    local = [name for name in named if name != SYNTHETIC and not is_remote(name)]
    return own_rows(section.model_copy(update={"source": local})) if local else []


def split_choice(count: int, what: str) -> Choice:
    """The shares of the splits, for `count` rows of the head."""
    few = count < FEWEST_TO_HOLD_OUT
    share = 0.0 if few else HELD_OUT
    why = f"{count} {what}: too few to hold some out" if few else "held out, to compare before and after"
    return Choice("data_prep.split", {"train": 1 - share, "valid": share, "test": 0.0}, why)
