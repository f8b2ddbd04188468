"""What second readings share: JSON as its standard has it, and shapes of values as JSON Schema has them."""

import json
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any


class Wrong(Exception):
    """What a second reading found."""


def require(holds: object, what: str) -> None:
    """Raise `Wrong` unless something holds."""
    if not holds:
        raise Wrong(what)


def fault_of(read: Callable[[], object]) -> str | None:
    """What a reading raises as `Wrong`, None where it raises nothing."""
    try:
        read()
    except Wrong as wrong:
        return str(wrong)
    return None


def json_value(content: bytes, *, strict: bool = True) -> Any:
    """A JSON text of RFC 8259.

    Args:
        strict: neither NaN nor a key that stands twice.
    """

    def refuse(text: str) -> float:
        raise Wrong(f"not JSON: {text}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        require(len({key for key, _ in pairs}) == len(pairs), "a key that stands twice")
        return dict(pairs)

    try:
        text = content.decode()
        return json.loads(text, parse_constant=refuse, object_pairs_hook=once) if strict else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong("not JSON") from error


def lines_of(content: bytes) -> Iterable[tuple[int, bytes]]:
    """The lines that are not blank, counted from 1."""
    return ((number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip())


@cache
def _schema(text: str) -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(text))


def require_shape(value: Any, schema: dict[str, Any], what: str) -> None:
    """Raise `Wrong` where a value is not of a JSON Schema."""
    error = next(_schema(json.dumps(schema)).iter_errors(value), None)
    if error is not None:
        place = ".".join("0" if isinstance(part, int) else str(part)[:30] for part in error.absolute_path)
        raise Wrong(f"{what} {error.validator} {place}: {error.message[:200]}")


def is_number(value: object) -> bool:
    """A finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (
        isinstance(value, int) or math.isfinite(value)
    )  # fmt: skip


def written(value: Any) -> Any:
    """A number that stands in quotes, or 8.0 for 8: a config may write it so, as YAML takes 1e-3 for a text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else number


def is_count(value: object) -> bool:
    """A whole number, not negative."""
    return type(value) is int and value >= 0
