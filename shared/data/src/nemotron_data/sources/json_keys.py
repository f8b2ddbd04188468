"""Parse JSON without losing anything: a repeated key is an error, and integers of any size stay exact.

    parse_json(b'{"prompt": "a", "prompt": "b"}')       # RepeatedKey: prompt

The fast parser silently keeps the last value of a repeated key; but then the row has more quotation marks than the
parsed value accounts for. Only such rows are parsed again, by a parser that detects repetition.
"""

import json
from collections import Counter
from typing import Any

from nemotron_data.formats import fast_json

NEVER = -(1 << 60)
"""So negative that no number of marks makes up for it."""


class RepeatedKey(ValueError):
    """A repeated key in an object; its argument is the key."""


def parse_json(row: bytes) -> Any:
    """Parse strict JSON: NaN and lone surrogates are errors.

    Raises:
        RepeatedKey: an object has a key twice.
        ValueError: invalid JSON.
    """
    value = fast_json.loads(row)
    if type(value) in (dict, list) and _marks(value) == row.count(b'"'):
        return value
    return json.loads(row, object_pairs_hook=_once)


def repeated_key(row: bytes) -> str | None:
    """First repeated key in a row, or None."""
    try:
        json.loads(row, object_pairs_hook=_once)
    except RepeatedKey as found:
        return str(found)
    return None


def _marks(value: Any) -> int:
    """Number of quotation marks in the usual JSON of an object or list, counted as fast as possible.

    Returns `NEVER` if an integer may have lost digits.
    """
    items, found = value, 0
    if type(value) is dict:
        items, found = value.values(), 2 * len(value)
    for item in items:
        kind = type(item)
        if kind is str:
            found += 2 + item.count('"')
        elif kind is dict or kind is list:
            found += _marks(item)
        elif kind is float and abs(item) >= 2**63:  # orjson turns integers beyond 64 bits into this
            return NEVER
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)  # not names.count: an object may have millions of names
        raise RepeatedKey(next(name for name, _ in pairs if times[name] > 1))
    return found
