"""What stands in for orjson reads and writes what orjson does."""

import json
import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from typing import Any

import orjson
import pytest

from nemotron_data.formats.fast_json import TOLD, SlowFragment, slow_dumps, slow_loads

TEXTS = [
    b"",
    b" ",
    b" 1 ",
    b"-0",
    b"-0.0",
    b"01",
    b"1.",
    b".5",
    b"1e5",
    b"1E400",
    b"-1e999",
    b"0.1e-400",
    b"NaN",
    b"Infinity",
    b"9223372036854775807",
    b"18446744073709551615",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"1" * 400,
    b"-9223372036854775809",
    b"123456789012345678901234567890.5",
    b"1" * 300,
    b'"\\ud800"',
    b'"\\ud83d\\ude00"',
    b'"\\udc00a"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\x7f"',
    b'"\t"',
    b'"\\u0000"',
    b'"\\x"',
    b'{"a":1,"a":2}',
    b'{"a":1,}',
    b"[1,]",
    b'{"\\ud800":1}',
    b"{1:2}",
    b"\xef\xbb\xbf1",
    b"[1 2]",
    b'{"a" : [ null , true,false ]}',
    b'"\\/"',
    b"tru",
    b"nullx",
    b'{"s":"\\u00e9\xc3\xa9"}',
    b"[" * 300 + b"]" * 300,
    b"[" * 1025 + b"]" * 1025,
    b'{"a":' * 500 + b"1" + b"}" * 500,
]
VALUES = [
    None,
    True,
    0,
    -1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    1.5,
    1e16,
    1e-7,
    1e22,
    float("nan"),
    float("inf"),
    -0.0,
    "",
    'é\u2028\x7f\x00\x1f"\\/\n\t\b\f\r😀',
    "\ud800",
    [],
    {},
    [[], {}],
    (1, 2),
    {"a": {"b": [1, None]}},
    {1: 2},
    {"é": "é"},
    {"\ud800": 1},
    date(2024, 1, 2),
    time(3, 4, 5),
    datetime(2024, 1, 2, 3, 4, 5, 6),
    datetime(2024, 1, 2, tzinfo=UTC),
    {1, 2},
    b"x",
    object(),
]


def outcome(work: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    try:
        return "gives", repr(work(*arguments))
    except json.JSONDecodeError:
        return "fails", json.JSONDecodeError
    except TypeError:
        return "fails", TypeError


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_is_read_as_orjson_reads_it(text: bytes) -> None:
    assert outcome(slow_loads, text) == outcome(orjson.loads, text)


@pytest.mark.parametrize("value", [*VALUES, nested(253), nested(254), nested(255)], ids=range(len(VALUES) + 3))
def test_a_value_is_written_as_orjson_writes_it(value: Any) -> None:
    assert outcome(slow_dumps, value) == outcome(orjson.dumps, value)


def test_what_default_gives_is_written() -> None:
    assert slow_dumps([{1}, date], default=lambda value: str(type(value))) == orjson.dumps(
        [{1}, date], default=lambda value: str(type(value))
    )


def test_doubles_are_written_and_read_alike() -> None:
    source = random.Random(7)
    drawn = [struct.unpack("d", source.randbytes(8))[0] for _ in range(20000)]
    drawn += [source.random() * 10 ** source.randint(-20, 25) for _ in range(20000)]
    line = orjson.dumps(drawn)
    assert slow_dumps(drawn) == line
    assert slow_loads(line) == orjson.loads(line)


def test_a_fragment_stands_as_it_is() -> None:
    raw = b'{"a":1.10,"b":[123456789012345678901234567890,{"c":1e5}]}'
    slow = json.loads(raw, parse_int=SlowFragment, parse_float=SlowFragment)
    fast = json.loads(raw, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
    assert slow_dumps(slow) == orjson.dumps(fast) == raw


def test_it_says_once_that_it_is_slower(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(TOLD, raising=False)
    slow_loads(b"1")
    slow_dumps(1)
    assert capsys.readouterr().err.count("orjson is not installed for this Python") == 1
    monkeypatch.delenv(TOLD)
