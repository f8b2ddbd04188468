"""Numbers as text, spelled as in their file.

1.50 in JSON, or in a Parquet column of decimals     "1.50"
"""

import json
import math
from decimal import Decimal
from typing import Any


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
