"""Nulls that a table adds to what stands inside of a row, and that are not the row's.

    {"name": "add", "arguments": {"a": 2, "b": 3, "city": null}}      `city` is an argument of another tool

A column of Arrow has one type for all rows. So each call in it has the arguments of every call in the file, each tool
the parameters of every tool, and each turn the fields of every turn; what a row does not have is null. In Parquet every
null inside of a structure may be such a one, and is left out. JSON lines that `datasets` has written have them, too.
Such a row is known by itself: all objects at one place in it have the same keys, and one of them has null where another
has a value; or a tool has a parameter that is null, which no schema means. In any other row a null is the row's own,
and stays. A null in a list, or as a field of the row, stays everywhere.
"""

from collections.abc import Iterator
from typing import Any

Place = tuple[str, ...]


def without_inner_nulls(value: Any) -> Any:
    """Without keys that have no value, in whatever depth."""
    if isinstance(value, dict):
        return {key: without_inner_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_inner_nulls(inner) for inner in value]
    return value


def without_table_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """A row of JSON without the nulls that a table has added; the very same where there are none, or none are known."""
    return within(row) if is_of_table(row) else row


def within(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose own fields stay, and in these no nulls."""
    return {name: without_inner_nulls(value) for name, value in row.items()}


def is_of_table(row: dict[str, Any]) -> bool:
    """Whether a row of JSON shows that a table has written it."""
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
    """The objects below the top, each with the keys that lead to it."""
    if isinstance(value, dict):
        if place:
            yield place, value
        for name, inner in value.items():
            yield from _objects((*place, name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(place, inner)
