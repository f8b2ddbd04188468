r"""Tool call arguments that work both as an object and as JSON text.

    {{ call.function.arguments | tojson }}                     Qwen, Hermes
    {% for name, value in call.function.arguments | items %}   Nemotron 3, GLM
    {{ '```json\n' + call.function.arguments + '\n```' }}      DeepSeek V3 and R1

Some templates expect an object, others print text; rows contain either. Numbers keep their spelling in both: 1.50 never
becomes 1.5.
"""

import json
import re
import secrets
from collections.abc import Callable
from decimal import Decimal
from typing import Any

MARK = secrets.token_hex(8)
NUMBER = re.compile(f'"{MARK}([-+.eE0-9]+)"')
"""A number as JSON spells it; ordinary text cannot contain the mark."""


class WrittenNumber(Decimal):
    """A number that Python would spell differently than its text."""

    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        """Keep the text."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type["WrittenNumber"], tuple[str]]:
        return WrittenNumber, (self.text,)


class Arguments(dict[str, Any]):
    """Object that turns into its JSON text wherever text is expected.

    Attributes:
        given: the text it was parsed from; None if it was given as an object.
    """

    __slots__ = ("given",)

    def __init__(self, values: dict[str, Any], given: str | None = None) -> None:
        super().__init__(values)
        self.given = given

    @property
    def text(self) -> str:
        """The JSON text."""
        return to_json(dict(self), default=str) if self.given is None else self.given

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: str) -> str:
        return self.text + other

    def __radd__(self, other: str) -> str:
        return other + self.text

    def __reduce__(self) -> tuple[type["Arguments"], tuple[dict[str, Any], str | None]]:
        return Arguments, (dict(self), self.given)


def arguments_of(given: Any) -> Arguments | None:
    """Arguments from an object, JSON text, or nothing (no arguments); None for anything else."""
    if given is None or isinstance(given, Arguments):
        return Arguments({}) if given is None else given
    if isinstance(given, str):
        try:
            values = parse_json(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return None
        values = {} if values is None else values
        return Arguments(values, given) if isinstance(values, dict) else None
    return Arguments(given) if isinstance(given, dict) else None


def parse_json(text: str) -> Any:
    """Parse JSON; numbers keep their spelling."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> float | WrittenNumber:
    number = float(text)
    return number if repr(number) == text else WrittenNumber(text)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    *,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Dump JSON with numbers as originally written; parameters are in the order in which templates pass them."""
    numbers = False

    def written(other: Any) -> Any:
        nonlocal numbers
        if isinstance(other, WrittenNumber):
            numbers = True
            return MARK + other.text
        if default is not None:
            return default(other)
        raise TypeError(f"Object of type {type(other).__name__} is not JSON serializable")

    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    made = json.dumps(value, ensure_ascii=ensure_ascii, default=written, **options)
    return NUMBER.sub(r"\1", made) if numbers else made
