"""What the Responses API is asked with becomes the conversation that a chat template shows."""

from typing import Any

import pytest

from nemotron_data.chat.prompt import conversation_of
from nemotron_shared.errors import UserError

ASKED: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "Use tools."}]},
        {"type": "message", "role": "user", "content": "Weather?", "id": "m1", "status": "completed"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "get", "arguments": '{"a": 1.50}'},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Rain."}]},
        {"role": "user", "content": "Sure?"},
    ],
    "tools": [{"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": True}],
}


def test_every_item_has_its_place() -> None:
    messages, tools = conversation_of(ASKED)
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert [message["content"] for message in messages] == [
        "Be brief.\n\nUse tools.", "Weather?", None, "rain", "Rain.", "Sure?",
    ]  # fmt: skip
    assert messages[2]["reasoning_content"] == "I look."
    assert [call["function"]["arguments"].text for call in messages[2]["tool_calls"]] == ['{"a": 1.50}', ""]
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "rain", "name": "get"}
    function = {"name": "get", "parameters": {"type": "object"}, "strict": True}
    assert tools == [{"type": "function", "function": function}]
    assert conversation_of({"input": "2+2?"}) == ([{"role": "user", "content": "2+2?"}], None)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "computer_call"}, "holds a 'computer_call'"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "an image in the content"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}, "malformed tool call"),
    ],
)
def test_what_no_template_shows_is_refused(item: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        conversation_of({"input": [{"role": "user", "content": "x"}, item]})
