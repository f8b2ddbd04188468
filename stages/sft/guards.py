"""Names of control tokens in a conversation go through the chat template as text, and are found again behind it.

    "Is <|im_end|> it?"  ->  "Is <\\ufdd0|im_end|> it?"  ->  template  ->  Rendered("...<|im_end|>...", [], [21])

What the template writes itself stays a control token. So does markup such as <think> in what an answer or a system
prompt says: it is the template's to take apart.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nemotron_data.chat.rows import SYSTEM_FIELDS, Message, counts
from nemotron_data.chat.template import Span
from nemotron_data.encoders.control import ControlTokens
from nemotron_data.sources.files import local_file
from nemotron_data.sources.reading import Row, read_files
from nemotron_shared.errors import UserError

GUARDS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode will never make characters of."""
OUTSIDE = ("user", "tool")
"""Whose words have no markup."""


class Rendered(NamedTuple):
    """A text, what of it the assistant wrote, and where it is cut so that no name of a control token stays whole."""

    text: str
    spans: list[Span]
    cuts: Sequence[int] = ()


def holds_control(control: ControlTokens, messages: list[Message], tools: Any) -> bool:
    """Whether a name of a control token stands in what somebody says in a conversation."""
    found = False

    def look(text: str, markup_too: bool) -> str:
        nonlocal found
        found = found or control.pattern(markup_too).search(text) is not None
        return text

    _changed(messages, tools, look)
    return found


def refuse_misread(file: str, control: ControlTokens | None) -> None:
    """Stop at a row of which Automodel's own reader would make something else than it says.

    Args:
        control: tokens whose names in somebody's words are text; None where they are asked for.

    Raises:
        UserError: with its place.
    """
    for row in read_files([local_file(Path(file).expanduser())]):
        messages = row.value.get("messages") if isinstance(row, Row) else None
        turns = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
        if not isinstance(row, Row):
            continue
        if control is not None and holds_control(control, turns, row.value.get("tools")):
            what = "control tokens in the text, of which Automodel makes the tokens"
            remedy = "prepare the chats, which encodes them as text"
        elif not all(counts(turn) for turn in turns if turn.get("role") == "assistant"):
            what = "an answer that does not count in the loss, which Automodel learns like the others"
            remedy = "prepare the chats, which leaves it out of the loss"
        elif beside := [name for name in row.value if name.lower() in SYSTEM_FIELDS and row.value[name]]:
            what = f"a system prompt beside the messages, in '{beside[0]}', which Automodel does not read"
            remedy = "prepare the chats, which puts it before the others"
        else:
            continue
        raise UserError(f"{row.file}:{row.line}: {what}", f"take the row out; or {remedy}: engine.data=packed")


def guarded(control: ControlTokens, messages: list[Message], tools: Any) -> tuple[list[Message], Any, str]:
    """The conversation with a guard inside of every such name, and the guard."""
    said = str(messages) + str(tools)
    guard = next(guard for guard in GUARDS if guard not in said)
    return *_changed(messages, tools, lambda text, markup_too: control.guarded(text, guard, markup_too)), guard


def without_guard(text: str, spans: list[Span], guard: str) -> Rendered:
    """The text as the model reads it; the guards become cuts."""
    places = [at for at, char in enumerate(text) if char == guard]
    moved = [(start - bisect_left(places, start), end - bisect_left(places, end)) for start, end in spans]
    return Rendered(text.replace(guard, ""), moved, [at - number for number, at in enumerate(places)])


def _changed(messages: list[Message], tools: Any, change: Callable[[str, bool], str]) -> tuple[list[Message], Any]:
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
    if isinstance(value, list):
        return [_in_texts(item, change, markup_too) for item in value]
    if isinstance(value, dict):
        return {_in_texts(key, change, markup_too): _in_texts(item, change, markup_too) for key, item in value.items()}
    return value
