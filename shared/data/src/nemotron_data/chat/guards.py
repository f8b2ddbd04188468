"""Names of control tokens in a conversation go through the chat template as text, and are found again behind it.

    "Is <|im_end|> it?"  ->  "Is <\\ufdd6|im_end|> it?"  ->  template  ->  Rendered("...<|im_end|>...", [], [21])

What the template writes itself stays a control token. So does markup such as <think> in what an answer or a system
prompt says: it is the template's to take apart.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nemotron_data.chat.arguments import Arguments, to_json
from nemotron_data.chat.rows import Message
from nemotron_data.chat.turns import Span
from nemotron_data.encoders.control import ControlTokens

GUARDS = [chr(code) for code in range(0xFDD6, 0xFDF0)]
"""Code points that Unicode will never make characters of; those before them are marks of templates."""
OUTSIDE = ("user", "tool")
"""Whose words have no markup."""


class Rendered(NamedTuple):
    """A text, what of it the assistant wrote, and where it is cut so that no name of a control token stays whole."""

    text: str
    spans: list[Span]
    cuts: Sequence[int] = ()


def holds_control(control: ControlTokens, messages: Sequence[Message], tools: Any) -> bool:
    """Whether a name of a control token stands in what somebody says in a conversation."""
    found = False

    def look(text: str, markup_too: bool) -> str:
        nonlocal found
        found = found or control.pattern(markup_too).search(text) is not None
        return text

    _changed(messages, tools, look)
    return found


def guarded(control: ControlTokens, messages: Sequence[Message], tools: Any) -> tuple[list[Message], Any, str]:
    """The conversation with a guard inside of every such name, and the guard."""
    said = to_json([messages, tools], default=str)
    guard = next(guard for guard in GUARDS if guard not in said)
    return *_changed(messages, tools, lambda text, markup_too: control.guarded(text, guard, markup_too)), guard


def without_guard(text: str, spans: list[Span], guard: str) -> Rendered:
    """The text as the model reads it; the guards become cuts."""
    places = [at for at, char in enumerate(text) if char == guard]
    moved = [(start - bisect_left(places, start), end - bisect_left(places, end)) for start, end in spans]
    return Rendered(text.replace(guard, ""), moved, [at - number for number, at in enumerate(places)])


def _changed(messages: Sequence[Message], tools: Any, change: Callable[[str, bool], str]) -> tuple[list[Message], Any]:
    """Every text of a conversation, changed; the roles are the template's words."""
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
