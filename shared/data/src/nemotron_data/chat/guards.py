"""Pass control token names in a conversation through the chat template as plain text, and find them in its output.

    "Is <|im_end|> it?"  ->  "Is <\\ufdd6|im_end|> it?"  ->  template  ->  Rendered("...<|im_end|>...", [], [21])

Control tokens that the template itself writes stay control tokens. So does markup such as <think> in an answer or a
system prompt, because the template parses it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nemotron_data.chat.rows import Arguments, Message, Parts, to_json
from nemotron_data.chat.spans import Span
from nemotron_data.encoders.masks import ControlTokens

GUARDS = [chr(code) for code in range(0xFDD6, 0xFDF0)]
"""Noncharacters, which Unicode will never assign; templates use the ones before them as marks."""
OUTSIDE = ("user", "tool")
"""Roles whose text never contains markup."""


class Rendered(NamedTuple):
    """Rendered text, its assistant spans, and cuts that split every control token name."""

    text: str
    spans: list[Span]
    cuts: Sequence[int] = ()


def holds_control(control: ControlTokens, messages: Sequence[Message], tools: Any) -> bool:
    """Whether any message or tool contains the name of a control token."""
    found = False

    def look(text: str, markup_too: bool) -> str:
        nonlocal found
        found = found or control.pattern(markup_too).search(text) is not None
        return text

    _changed(messages, tools, look)
    return found


def guarded(control: ControlTokens, messages: Sequence[Message], tools: Any) -> tuple[list[Message], Any, str]:
    """Insert a guard into every control token name; returns the conversation and the guard."""
    said = to_json([messages, tools], default=str)
    guard = next(guard for guard in GUARDS if guard not in said)
    return *_changed(messages, tools, lambda text, markup_too: control.guarded(text, guard, markup_too)), guard


def without_guard(text: str, spans: list[Span], guard: str) -> Rendered:
    """Remove the guards, which become cuts."""
    places = [at for at, char in enumerate(text) if char == guard]
    moved = [(start - bisect_left(places, start), end - bisect_left(places, end)) for start, end in spans]
    return Rendered(text.replace(guard, ""), moved, [at - number for number, at in enumerate(places)])


def _changed(messages: Sequence[Message], tools: Any, change: Callable[[str, bool], str]) -> tuple[list[Message], Any]:
    """Map `change` over all text except roles, which the template compares."""
    made = [
        {
            name: value
            if name == "role"
            else _in_texts(value, change, message.get("role") in OUTSIDE or name == "tool_calls")
            for name, value in message.items()
        }
        for message in messages
    ]
    return made, _in_texts(tools, change, False)


def _in_texts(value: Any, change: Callable[[str, bool], str], markup_too: bool) -> Any:
    if isinstance(value, Parts):
        return Parts([change(part, markup_too) for part in value.parts])
    if isinstance(value, str):
        return change(value, markup_too)
    if isinstance(value, Arguments):
        given = None if value.given is None else change(value.given, markup_too)
        return Arguments(_in_texts(dict(value), change, markup_too), given)
    if isinstance(value, list):
        return [_in_texts(item, change, markup_too) for item in value]
    if isinstance(value, dict):
        return {_in_texts(key, change, markup_too): _in_texts(item, change, markup_too) for key, item in value.items()}
    return value
