"""Remove nulls that tables add inside of rows.

    {"name": "add", "arguments": {"a": 2, "b": 3, "city": null}}      `city` is an argument of another tool

An Arrow column has one type for all rows. So each call in it has the arguments of every call in the file, each tool the
parameters of every tool, and each turn the fields of every turn, filled with null. In Parquet every null inside a
structure may come from this, so they are removed. JSON lines written by `datasets` have the same problem. Such a row
can be recognized: all objects at one place in it have the same keys, and one has null where another has a value; or a
tool has a null parameter, which is never a valid schema. In all other rows nulls are kept. A null in a list, or as a
top-level field, is always kept.
"""

from collections.abc import Iterator
from typing import Any

Place = tuple[str, ...]


def without_inner_nulls(value: Any) -> Any:
    """Remove keys without values, at any depth."""
    if isinstance(value, dict):
        return {key: without_inner_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_inner_nulls(inner) for inner in value]
    return value


def without_table_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Remove nulls that a table added from a row of JSON; returns the same object if it shows no sign of a table."""
    return within(row) if is_of_table(row) else row


def within(row: dict[str, Any]) -> dict[str, Any]:
    """Remove nulls inside the fields of a row, but keep the fields themselves."""
    return {name: without_inner_nulls(value) for name, value in row.items()}


def is_of_table(row: dict[str, Any]) -> bool:
    """Whether a row of JSON shows that a table wrote it."""
    keys: dict[Place, set[str]] = {}
    nulls: set[Place] = set()
    values: set[Place] = set()
    alike = True
    for place, found in _objects((), row):
        alike = alike and keys.setdefault(place, set(found)) == found.keys()
        for name, value in found.items():
            (nulls if value is None else values).add((*place, name))
        if place[-1:] == ("properties",) and None in found.values():
            return True
    return alike and bool(nulls & values)


def _objects(place: Place, value: Any) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Objects below the top level, each with the keys that lead to it."""
    if isinstance(value, dict):
        if place:
            yield place, value
        for name, inner in value.items():
            yield from _objects((*place, name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(place, inner)
