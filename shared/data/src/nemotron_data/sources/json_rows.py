"""JSON without losses: repeated keys, lists of rows in one value, and nulls that a table added.

    parse_json(b'{"prompt": "a", "prompt": "b"}')       # RepeatedKey: prompt
    rows_of_list(file, ...)                             # items of [{...}, {...}], or of {"data": [{...}, {...}]}
    without_table_nulls({"arguments": {"a": 2, "city": None}})      # `city` is an argument of another row's tool

An Arrow column has one type for all rows. So each call in it has the arguments of every call in the file, each tool the
parameters of every tool, and each turn the fields of every turn, filled with null. In Parquet every null inside a
structure may come from this, so they are removed. JSON lines written by `datasets` have the same problem. Such a row
can be recognized: all objects at one place in it have the same keys, and one has null where another has a value; or a
tool has a null parameter, which is never a valid schema. In all other rows nulls are kept. A null in a list, or as a
top-level field, is always kept.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, TextIO

from nemotron_data.formats import fast_json
from nemotron_shared.system.errors import UserError

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
    return json.loads(row, object_pairs_hook=unique_keys)


def repeated_key(row: bytes) -> str | None:
    """First repeated key in a row, or None."""
    try:
        json.loads(row, object_pairs_hook=unique_keys)
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


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Hook for `json.loads` that raises `RepeatedKey` instead of keeping the last of two values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(name for name, _ in pairs)  # not names.count: an object may have millions of names
        raise RepeatedKey(next(name for name, _ in pairs if times[name] > 1))
    return found


BLOCK = 1 << 20
SPACE = " \t\r\n"
TOO_DEEP = "too many brackets inside of each other"
TURNS = ("messages", "conversations", "conversation")


def rows_of_list(file: TextIO, name: str, longest: int) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each item, in order.

    Args:
        longest: maximum characters of an item.

    Raises:
        UserError: not such a value, or truncated.
    """
    stream = _Stream(file, name, longest)
    if stream.peek() == "[":
        yield from stream.items()
    else:
        yield from _of_object(stream)
    if after := stream.peek():
        what = f"{name}:{stream.line}: {after!r} after the end of the JSON value"
        raise UserError(what, f"write each row in one line: jq -c . {name} > rows.jsonl")


def _of_object(stream: "_Stream") -> Iterator[tuple[int, str]]:
    """Items of the only list of objects in an object; its other fields are not rows."""
    found = None
    stream.expect("{")
    while stream.peek() != "}":
        key = stream.key()
        stream.expect(":")
        if stream.peek() == "[" and stream.opens_objects():
            if found is not None or key in TURNS:
                what = f"'{found}' and '{key}', two lists of objects" if found is not None else "one row in many lines"
                remedy = stream.one_line_each
                if found == key:
                    remedy = "give one of them another name: programs that read JSON, jq too, keep the last one only"
                elif found is not None:
                    remedy = f"write each row in one line: jq -c '.{key}[]' {stream.name} > {key}.jsonl"
                raise UserError(f"{stream.name}: holds {what}", remedy)
            found = key
            yield from stream.items()
        else:
            stream.value()
        if stream.peek() != ",":
            break
        stream.expect(",")
    stream.expect("}")
    if found is None:
        raise UserError(f"{stream.name}: an object without a list of rows", stream.one_line_each)


class _Stream:
    """JSON text of which only a window is in memory."""

    def __init__(self, file: TextIO, name: str, longest: int) -> None:
        self.name, self.line = name, 1
        self.one_line_each = f"write each row in one line: jq -c . {name} > rows.jsonl"
        self._file, self._longest = file, longest
        # we only need where a value ends: keep numbers as text, however many digits they have
        self._decoder = json.JSONDecoder(parse_int=str)
        self._text, self._at, self._ended = "", 0, False

    def items(self) -> Iterator[tuple[int, str]]:
        """Yield line number and text of each value of the list that begins here."""
        self.expect("[")
        while self.peek() != "]":
            yield self.line, self.value()
            if self.peek() != ",":
                break
            self.expect(",")
        self.expect("]")

    def opens_objects(self) -> bool:
        """Whether the first item of the list that begins here is an object."""
        while True:
            rest = self._text[self._at + 1 :].lstrip(SPACE)
            if rest or not self._more(BLOCK):
                return rest.startswith("{")

    def peek(self) -> str:
        """Next character that is not white space; empty at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in SPACE:
                self.line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(BLOCK):
                return ""

    def expect(self, sign: str) -> None:
        """Consume a character."""
        found = self.peek()
        if found != sign:
            raise self._malformed(f"'{sign}' is expected, not {found!r}" if found else f"no '{sign}'", cut=not found)
        self._at += 1

    def key(self) -> str:
        """Consume a field name."""
        if self.peek() != '"':
            raise self._malformed(f"a name in quotation marks is expected, not {self.peek()!r}", cut=not self.peek())
        return json.loads(self.value())

    def value(self) -> str:
        """Consume a value, and return its text."""
        self.peek()
        while True:
            try:
                _, end = self._decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._more(BLOCK):
                    break
            except json.JSONDecodeError as error:
                # a value may only seem invalid because the window ends in the middle of it
                cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - 16
                if not cut or not self._more(max(BLOCK, len(self._text) - self._at)):
                    self.line += self._text.count("\n", self._at, error.pos)
                    raise self._malformed(error.msg, cut) from error
            except RecursionError as error:
                raise self._malformed(TOO_DEEP) from error
        text, self._at = self._text[self._at : end], end
        self.line += text.count("\n")
        return text

    def _more(self, count: int) -> bool:
        """Read more and drop consumed text; returns False at the end."""
        if self._ended:
            return False
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > self._longest:
            raise self._malformed(f"a value of more than {self._longest >> 20} Mi characters")
        new = self._file.read(count)
        self._ended = not new
        self._text += new
        return bool(new)

    def _malformed(self, what: str, cut: bool = False) -> UserError:
        end = "; the file is cut short" if cut else ""
        return UserError(f"{self.name}:{self.line}: malformed JSON: {what}{end}", "fetch or write it again")


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
