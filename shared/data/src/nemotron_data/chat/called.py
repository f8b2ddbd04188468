"""The turns of a conversation with tool calls that say what is right: calls, and answers after their results.

    user: Weather in Kelby?  assistant: weather(city=Kelby)  tool: 21  assistant: 21
->  Decided([user], calls=[weather(...)]), Decided([user, assistant, tool], calls=[], said="21")

Evaluation asks for each of them, and reinforcement learning rewards them by `tool_call`. The turns before are given as
they stand, so a wrong call does not spoil the turns after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemotron_data.chat.answers import Call
from nemotron_data.chat.formats import messages_of
from nemotron_data.chat.rows import Message, arguments_of, to_json, tools_of, validate_messages
from nemotron_data.rejects import Refused
from nemotron_data.verifier import is_as_taught
from nemotron_data.verifier.calls import as_text
from nemotron_shared.system.errors import UserError

FIELDS = ("messages", "conversations", "tools")
"""Fields of a conversation with tools."""


@dataclass(frozen=True)
class Decided:
    """A turn of the assistant of which a rule can tell what is right.

    Attributes:
        before: the messages that lead to it.
        calls: what it calls; none: it says `said`, after a result.
    """

    before: list[Message]
    tools: list[dict[str, Any]] | None
    calls: list[Call]
    said: str

    @property
    def expected(self) -> str:
        """What a reward compares with: the calls in JSON, or the text."""
        return as_text(self.calls) if self.calls else self.said

    @property
    def question(self) -> str:
        """All that leads to it, for people."""
        return "\n".join(f"{one['role']}: {_shown(one)}" for one in self.before if one["role"] != "system")


def is_conversation(row: Mapping[str, Any], question_field: str) -> bool:
    """Whether a row is a conversation, and not a question in a field."""
    return row.get(question_field) is None and any(isinstance(row.get(name), list) for name in FIELDS[:2])


def decided_turns(row: dict[str, Any]) -> list[Decided]:
    """The turns of a row that can be judged.

    Raises:
        Refused: not a conversation that a chat template could show, or none of its turns calls a tool.
    """
    try:
        messages, tools = messages_of(row), tools_of(row)
    except UserError as error:
        raise Refused(error.message, remedy=error.remedy) from error
    if reason := validate_messages(messages):
        raise Refused(reason)
    found = list(_decided(messages, tools))
    if not any(turn.calls for turn in found):
        remedy = "take it out, or name the fields of a question and its answer"
        raise Refused("a conversation without tool calls", "nothing in it can be judged", remedy)
    return found


def _decided(messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> Iterator[Decided]:
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, said = list(messages[:number]), str(message.get("content") or "")
        if calls := [_call(one) for one in message.get("tool_calls") or ()]:
            yield Decided(before, tools, calls, said)
        elif before and before[-1]["role"] == "tool" and is_as_taught(said, said):
            yield Decided(before, tools, [], said)


def _call(entry: Mapping[str, Any]) -> Call:
    function = entry.get("function") or entry
    return Call(str(function["name"]), to_json(dict(arguments_of(function.get("arguments")) or {})))


def _shown(message: Message) -> str:
    calls = " ".join(f"{call.name}({call.arguments})" for call in map(_call, message.get("tool_calls") or ()))
    return " ".join(filter(None, [str(message.get("content") or ""), calls]))


def as_items(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as items of the Responses API, which `turns_of` reads."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if thought := message.get("reasoning_content"):
            items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": str(thought)}]})
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message.get("tool_call_id"),
                          "output": message.get("content")})  # fmt: skip
            continue
        if message.get("content") or not message.get("tool_calls"):
            items.append({"role": message["role"], "content": message.get("content") or ""})
        for entry, call in ((entry, _call(entry)) for entry in message.get("tool_calls") or ()):
            items.append({"type": "function_call", "call_id": entry.get("id"), **call._asdict()})
    return items
