"""JSON whose parser drops nothing: a name that an object has twice is an error, and an integer of any size stays exact.

    parse_json(b'{"prompt": "a", "prompt": "b"}')       # RepeatedKey: prompt

The fast parser keeps the last value of a name and says nothing of the others; but then the row has more quotation
marks than what was made of it. Only rows of which that is so are parsed again, by one that tells.
"""

import json
from collections import Counter
from typing import Any

from nemotron_data.formats import fast_json

NEVER = -(1 << 60)
"""More than any count of marks makes up for."""


class RepeatedKey(ValueError):
    """A name that an object has twice; its argument is the name."""


def parse_json(row: bytes) -> Any:
    """Strict JSON: NaN and lone surrogates are errors.

    Raises:
        RepeatedKey: an object has a name twice.
        ValueError: it is no JSON.
    """
    value = fast_json.loads(row)
    if type(value) in (dict, list) and _marks(value) == row.count(b'"'):
        return value
    return json.loads(row, object_pairs_hook=_once)


def repeated_key(row: bytes) -> str | None:
    """The first name that an object in a row has twice; None where there is none."""
    try:
        json.loads(row, object_pairs_hook=_once)
    except RepeatedKey as found:
        return str(found)
    return None


def _marks(value: Any) -> int:
    """Quotation marks in the usual JSON of an object or a list, as fast as it can be counted; `NEVER` where an integer
    may have lost digits."""
    items, found = value, 0
    if type(value) is dict:
        items, found = value.values(), 2 * len(value)
    for item in items:
        kind = type(item)
        if kind is str:
            found += 2 + item.count('"')
        elif kind is dict or kind is list:
            found += _marks(item)
        elif kind is float and abs(item) >= 2**63:  # what orjson makes of an integer beyond 64 bits
            return NEVER
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)  # not names.count: an object may have millions of names
        raise RepeatedKey(next(name for name, _ in pairs if times[name] > 1))
    return found
