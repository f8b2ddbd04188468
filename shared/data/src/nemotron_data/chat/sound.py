"""Reasons why a conversation cannot be trained on.

[{"role": "user", "content": "2+2?"}]  ->  "no assistant turn"
"""

from typing import Any

from nemotron_data.chat.rows import COUNTING, REASONING_NAMES, ROLES, Message, counts, parsed_call

ORDINARY = {"role", "content"}
CALL_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<function_call>", "<functioncall>", "<function=")
"""Marks of tool calls written as text: Hermes, Mistral, Glaive, Llama 3."""


NO_CALL = "tool message without a tool call"
REMEDIES = {
    NO_CALL: "write the calls before it as the answer's tool_calls, or in its text between <tool_call> and"
    " </tool_call>, or the tool's turns as the user's"
}
"""Remedies for reasons that affect a whole data set, where leaving out such rows would leave out most or all of it."""


def remedy_of(reason: str) -> str | None:
    """Remedy for a reason; None if the row can only be left out."""
    return REMEDIES.get(reason)


def validate_messages(messages: Any) -> str | None:
    """Return why a conversation cannot be trained on, as one of a few fixed phrases to count by, or None if it can."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "messages is not a list of objects"
    if not messages:
        return "no messages"
    call_ids: list[Any] = []
    for message in messages:
        if message.keys() == ORDINARY and type(message["content"]) is str and message["role"] in ("user", "system"):
            continue
        if reason := problem_of(message) or _no_lesson(message) or _problem_of_answer(message, call_ids):
            return reason
        call_ids += [call.get("id") for call in message.get("tool_calls") or ()]
        call_ids += [None] if calls_in_text(message) else []
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        return "no assistant turn"
    return None if any(map(counts, answers)) else "no assistant turn that counts in the loss"


def problem_of(message: Message) -> str | None:
    """Why no template should get this message, in training or as a prompt."""
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    reasoning = [message[name] for name in REASONING_NAMES if message.get(name) is not None]
    if role not in ROLES:
        return f"unknown role: {repr(role)[:80]}; known are {', '.join(ROLES)}"
    if calls and role != "assistant":
        return "tool calls outside an assistant turn"
    if not isinstance(content, str) and not (content is None and calls):
        return "content is not a string"
    if not all(isinstance(text, str) for text in reasoning):
        return "reasoning is not a string"
    if len({text for text in reasoning if text.strip()}) > 1:
        said = " and ".join(f"'{name}'" for name in REASONING_NAMES if message.get(name))
        return f"two different reasonings in one turn: {said}"
    if calls and not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
        return "malformed tool call"
    return None


def calls_in_text(message: Message) -> bool:
    """Whether an answer calls a tool in its text, without a field for the call."""
    said = message.get("content")
    return (
        message.get("role") == "assistant"
        and not message.get("tool_calls")
        and isinstance(said, str)
        and any(mark in said for mark in CALL_MARKS)
    )


def _no_lesson(message: Message) -> str | None:
    """Why a message cannot be trained on, or cannot be left out of the loss."""
    role = message["role"]
    wishes = {name: message[name] for name in COUNTING if message.get(name) is not None}
    for name, wish in wishes.items():
        if wish not in (0, 1):
            return f"a weight that is neither 0 nor 1: '{name}' is {wish!r}"
        if wish and role != "assistant":
            return f"a weight outside an assistant turn: '{name}' of a turn of the {role}; only answers are learnt"
    if len(set(map(bool, wishes.values()))) > 1:
        said = " and ".join(f"'{name}' is {wish!r}" for name, wish in wishes.items())
        return f"a turn that both counts in the loss and does not: {said}"
    words = [message.get("content"), *(message.get(name) for name in REASONING_NAMES)]
    if role == "assistant" and not message.get("tool_calls") and not any(text and text.strip() for text in words):
        return "empty assistant turn"
    return None


def _is_tool_call(call: Any) -> bool:
    function = parsed_call(call).get("function") if isinstance(call, dict) else None
    wanted = {"name": str, "arguments": dict}
    return isinstance(function, dict) and all(isinstance(function.get(key), kind) for key, kind in wanted.items())


def _problem_of_answer(message: Message, call_ids: list[Any]) -> str | None:
    """A tool message must name the call it answers, if the calls have ids."""
    if message["role"] != "tool":
        return None
    if not call_ids:
        return NO_CALL
    if None not in call_ids and message.get("tool_call_id") is None:
        return "tool message without tool_call_id"
    if None not in call_ids and message["tool_call_id"] not in call_ids:
        return "tool_call_id of no tool call"
    return None
