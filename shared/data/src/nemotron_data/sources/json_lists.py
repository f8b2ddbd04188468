r"""Stream rows from one JSON value: a list of objects, or an object with one such list.

    [                                         {"version": 1,
      {"question": "2+2?", "answer": "4"},     "data": [{"question": "2+2?", "answer": "4"}]}
    ]

A truncated or malformed list has no next line to resume at, so it is always an error.
"""

import json
from collections.abc import Iterator
from typing import TextIO

from nemotron_shared.errors import UserError

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
