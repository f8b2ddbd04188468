"""Convert Responses API requests to chat messages.

    {"instructions": "Be brief.", "input": [{"role": "user", "content": "Weather in Oslo?"},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"}], "tools": [{"type": "function", ...}]}
->  a system, a user, an assistant and a tool message, and the tool
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nemotron_data.chat.prompt import asked_messages
from nemotron_data.chat.rows import Message, tools_of
from nemotron_shared.errors import UserError

OF_ITEMS = {"type", "id", "status"}
"""Fields of items that are not fields of messages."""
INSTEAD = "give such rows to a server of that API, or take them out"


def conversation_of(parameters: Mapping[str, Any]) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The messages, instructions first, and the tools.

    Raises:
        UserError: an item that no chat template can show, or invalid tools.
    """
    asked = parameters.get("input")
    items: Sequence[Any] = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked or []
    turns: list[Message] = []
    thought = ""
    for item in items:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            thought += "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
            continue
        turn = _turn(item, kind)
        if thought and turn["role"] == "assistant":
            turn, thought = {**turn, "reasoning_content": thought}, ""
        if kind == "function_call" and turns and turns[-1]["role"] == "assistant":
            last = turns[-1]
            turns[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), *turn["tool_calls"]]}
            continue
        turns.append(turn)
    names = {call["id"]: call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
    turns = [{**turn, "name": names[turn["tool_call_id"]]} if turn.get("tool_call_id") in names else turn
             for turn in turns]  # fmt: skip
    try:
        messages, tools = asked_messages(turns), tools_of({"tools": parameters.get("tools")})
    except ValueError as error:
        raise UserError(f"the prompt cannot be shown: {error}", INSTEAD) from error
    if instructions := parameters.get("instructions"):
        messages = _instructed(messages, str(instructions))
    return messages, tools


def _instructed(messages: list[Message], instructions: str) -> list[Message]:
    """Prepend instructions to the conversation's own system turn, if any, since most templates show only one."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": instructions}, *messages]
    return [{**messages[0], "content": f"{instructions}\n\n{messages[0]['content']}"}, *messages[1:]]


def _turn(item: Mapping[str, Any], kind: str) -> Message:
    if kind == "message":
        return {name: value for name, value in item.items() if name not in OF_ITEMS}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    raise UserError(f"the prompt holds a '{kind}', which a chat template cannot show", INSTEAD)
