"""Rows to messages, for each format of the table in `formats.py`; and why a conversation cannot be trained on.

{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}], "used_in": ["nano_v3"]}
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemotron_shared.errors import UserError, did_you_mean

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
ORDINARY = {"role", "content"}
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class ChatFields:
    """The names of the fields in which a row keeps its conversation."""

    messages_field: str = "messages"
    prompt_field: str = "prompt"
    response_field: str = "response"
    conversations_field: str = "conversations"


def from_messages(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """OpenAI-style messages as they are, but tool call arguments that are JSON text become objects, which templates
    iterate over.

    Raises:
        UserError: a field is missing, as in the other two.
    """
    return _each(_field(row, fields.messages_field), _with_object_arguments)


def from_prompt_response(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """One question and its answer."""
    prompt, response = _field(row, fields.prompt_field), _field(row, fields.response_field)
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def from_sharegpt(row: dict[str, Any], fields: ChatFields) -> list[Message]:
    """Turns that say `from` and `value`."""
    return _each(
        _field(row, fields.conversations_field),
        lambda turn: {
            "role": SHAREGPT_ROLES.get(str(turn.get("from")), turn.get("from")),
            "content": turn.get("value"),
        },
    )


def is_used_in(row: dict[str, Any], field: str, wanted: str) -> bool:
    """Whether a row's list of uses, or its comma-separated text, names `wanted`; a row without one does not."""
    uses = row.get(field)
    if isinstance(uses, str):
        uses = [use.strip() for use in uses.split(",")]
    return isinstance(uses, list) and wanted in uses


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise UserError(f"no field '{name}' in this row", did_you_mean(name, row, f"it has {', '.join(row)}"))
    return row[name]


def _each(value: Any, convert: Callable[[Message], Message]) -> Any:
    """Convert what is an object; anything else stays for `validate_messages` to name."""
    if not isinstance(value, list):
        return value
    return [convert(item) if isinstance(item, dict) else item for item in value]


def _with_object_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": _each(calls, _parsed_call)} if calls else message


def _parsed_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def validate_messages(messages: Any) -> str | None:
    """Why a conversation cannot be trained on, as one of a few fixed phrases to count by, or None if it can."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "messages is not a list of objects"
    if not messages:
        return "no messages"
    call_ids: list[Any] = []
    for message in messages:
        if message.keys() == ORDINARY and type(message["content"]) is str and message["role"] in ("user", "system"):
            continue
        if reason := _problem_of(message) or _problem_of_answer(message, call_ids):
            return reason
        call_ids += [call.get("id") for call in message.get("tool_calls") or ()]
    return None if any(message["role"] == "assistant" for message in messages) else "no assistant turn"


def _problem_of(message: Message) -> str | None:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    reasoning = [message[name] for name in REASONING_NAMES if message.get(name) is not None]
    if role not in ROLES:
        return "unknown role"
    if calls and role != "assistant":
        return "tool calls outside an assistant turn"
    if not isinstance(content, str) and not (content is None and calls):
        return "content is not a string"
    if not all(isinstance(text, str) for text in reasoning):
        return "reasoning is not a string"
    if calls and not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
        return "malformed tool call"
    if role == "assistant" and not calls and not "".join([content or "", *reasoning]).strip():
        return "empty assistant turn"
    return None


def _is_tool_call(call: Any) -> bool:
    function = _parsed_call(call).get("function") if isinstance(call, dict) else None
    wanted = {"name": str, "arguments": dict}
    return isinstance(function, dict) and all(isinstance(function.get(key), kind) for key, kind in wanted.items())


def _problem_of_answer(message: Message, call_ids: list[Any]) -> str | None:
    """A tool's message must say which call it answers, as far as the calls have ids."""
    if message["role"] != "tool":
        return None
    if not call_ids:
        return "tool message without a tool call"
    if None not in call_ids and message.get("tool_call_id") is None:
        return "tool message without tool_call_id"
    if None not in call_ids and message["tool_call_id"] not in call_ids:
        return "tool_call_id of no tool call"
    return None
