"""The first rows of a person's files, to choose settings by, and what of so few or many rows is held out."""

from collections.abc import Iterator
from itertools import islice

from nemotron_data.sources.reading import Row, read_files
from nemotron_data.sources.rows import own_rows
from nemotron_shared.config.schema import SourceSection
from nemotron_shared.runtime.choices import Choice

LOOKED_AT = 2000
FEWEST_TO_HOLD_OUT = 100
"""A share of fewer rows would tell nothing, and cost what they teach."""
HELD_OUT = 0.05


def first_rows(section: SourceSection) -> Iterator[Row]:
    """The first 2,000 rows that can be read.

    Raises:
        UserError: a file is missing, of no known kind, or cannot be read.
    """
    return islice((row for row in read_files(own_rows(section)) if isinstance(row, Row)), LOOKED_AT)


def split_choice(count: int, what: str) -> Choice:
    """The shares of the splits, for `count` rows of the head."""
    few = count < FEWEST_TO_HOLD_OUT
    share = 0.0 if few else HELD_OUT
    why = f"{count} {what}: too few to hold some out" if few else "held out, to compare before and after"
    return Choice("data_prep.split", {"train": 1 - share, "valid": share, "test": 0.0}, why)
