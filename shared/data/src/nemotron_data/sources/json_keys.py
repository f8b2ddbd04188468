"""Names that a JSON object has twice: the parser of rows keeps the last value and says nothing of the others.

repeated_key(b'{"prompt": "a", "prompt": "b"}')     # "prompt"

The parser that tells takes several times as long, so that only the first rows are looked at: a program that writes a
name twice does so in every row.
"""

import json
from collections import Counter
from typing import Any

FIRST = 200
"""Rows of each part of a file that are looked at."""


class _Twice(Exception):
    """Ends the parsing; its argument is the name."""


def repeated_key(row: bytes) -> str | None:
    """The first name that an object in a row has twice; None where there is none."""
    try:
        json.loads(row, object_pairs_hook=_once)
    except _Twice as found:
        return str(found)
    return None


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        times = Counter(names)  # not names.count: an object may have millions of names
        raise _Twice(next(name for name in names if times[name] > 1))
