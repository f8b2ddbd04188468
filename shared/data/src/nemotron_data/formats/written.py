"""Numbers as text, with the digits that their file has.

1.50 in JSON, or in a Parquet column of decimals     "1.50"
"""

import json
import math
from decimal import Decimal
from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is a number; True is none."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_missing(value: Any) -> bool:
    """Whether a value is NaN or infinite: in tables, how a missing number is written."""
    return isinstance(value, float) and not math.isfinite(value)


def text_of(value: str | float | Decimal) -> str:
    """A text as it is, and a number of a table as text: a decimal has all its digits, and no exponent."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def with_numbers_as_written(row: dict[str, Any], written: bytes | None) -> dict[str, Any]:
    """A row with texts in place of the numbers among its own values; the very same out of a table.

    Args:
        written: the JSON of the row, where there is one: a float has lost the digits beyond its 17, and the zeros at
            the end.
    """
    numbers = [name for name, value in row.items() if is_number(value)]
    if written is None or not numbers:
        return row
    texts = json.loads(written, parse_int=str, parse_float=str)
    return {**row, **{name: texts[name] for name in numbers}}
