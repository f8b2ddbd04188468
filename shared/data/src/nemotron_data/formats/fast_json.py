"""orjson, or slower equivalents with a one-time warning where it is missing, as in NVIDIA's containers.

fast_json.loads(b'{"a": 1.10}')                 {"a": 1.1}
fast_json.dumps({"a": fast_json.Fragment("1.10")})   b'{"a":1.10}'
"""

import json
import os
from collections.abc import Callable, Iterator
from datetime import date, time
from typing import Any

from nemotron_shared.system.console import say

TOLD = "NEMOTRON_SLOW_JSON_TOLD"
"""Environment variable that keeps other processes of a run from repeating the warning."""
READ_DEPTH, WRITE_DEPTH = 1024, 254
"""Nesting depths that orjson supports. Python 3.11 itself reads slightly fewer levels."""
Other = Callable[[Any], Any] | None


def tell_once() -> None:
    """Warn once, at the first use, that JSON is slower."""
    if TOLD not in os.environ:
        os.environ[TOLD] = "yes"
        say("note: orjson is not installed for this Python: JSON is read and written more slowly, with the same result")


class SlowFragment(str):
    """JSON that is written unchanged."""

    __slots__ = ()


def slow_loads(raw: bytes | str) -> Any:
    """Parse strict JSON: NaN, numbers beyond a double and lone surrogates are errors; larger integers lose digits.

    Raises:
        json.JSONDecodeError: invalid JSON.
    """
    tell_once()
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_number)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails on a lone surrogate
        if text.count("[") + text.count("{") > READ_DEPTH and _depth(value) > READ_DEPTH:
            raise ValueError("nested too deeply")
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error
    return value


def slow_dumps(value: Any, default: Other = None) -> bytes:
    """Dump a value on one line, without spaces. NaN becomes null.

    Raises:
        TypeError: a value cannot be written as JSON, and `default` does not convert it.
    """
    tell_once()
    try:
        return "".join(_pieces(value, default, 0)).encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"str is not valid UTF-8: {error.reason}") from error


def _integer(text: str) -> int | float:
    value = int(text) if len(text) <= len(str(-(2**63))) else 2**64  # int() is slow with many digits, or refuses
    return value if -(2**63) <= value < 2**64 else _number(text)


def _number(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:40]} is not a number in JSON")
    return value


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(_depth, items), default=0)


def _pieces(value: Any, default: Other, depth: int) -> Iterator[str]:
    kind = type(value)
    if kind in (dict, list, tuple) and depth >= WRITE_DEPTH:
        raise TypeError("nested too deeply")
    if isinstance(value, SlowFragment):
        yield value
    elif kind is dict:
        yield from _object(value, default, depth)
    elif kind is list or kind is tuple:
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield from _pieces(item, default, depth + 1)
        yield "]"
    else:
        yield from _single(value, default, depth)


def _object(value: dict[Any, Any], default: Other, depth: int) -> Iterator[str]:
    yield "{"
    for number, (name, item) in enumerate(value.items()):
        if not isinstance(name, str):
            raise TypeError("Dict key must be str")
        yield f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:"
        yield from _pieces(item, default, depth + 1)
    yield "}"


def _single(value: Any, default: Other, depth: int) -> Iterator[str]:
    if isinstance(value, float):
        # pydantic_core, which all containers have, writes floats as orjson does: 1e-7, not 1e-07
        from pydantic_core import to_json

        yield to_json(value, inf_nan_mode="null").decode()
    elif value is None or isinstance(value, str | bool):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise TypeError("Integer exceeds 64-bit range")
        yield str(int(value))
    elif isinstance(value, date | time):
        yield json.dumps(value.isoformat())
    elif default is not None:
        yield from _pieces(default(value), default, depth + 1)
    else:
        raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


try:
    from orjson import Fragment, dumps, loads
except ModuleNotFoundError:
    Fragment, dumps, loads = SlowFragment, slow_dumps, slow_loads
