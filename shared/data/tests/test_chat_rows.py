from decimal import Decimal

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat.formats import CHAT_FORMATS
from nemotron_data.chat.rows import (
    ChatFields,
    from_messages,
    from_prompt_response,
    from_sharegpt,
    is_used_in,
    validate_messages,
)
from nemotron_shared.errors import UserError

VALID = [
    [user(), bot()],
    [bot("greeting first")],
    [{"role": "system", "content": ""}, user(""), bot("", reasoning_content="r")],
    [user(), calling(CALL), tool(tool_call_id="c1"), bot()],
    [user(), calling({"function": {"name": "f", "arguments": '{"a": 1}'}}), tool(), bot()],
    [user(name=None, tool_calls=None), bot(tool_calls=[])],
]
INVALID = [
    (None, "messages is not a list of objects"),
    (["hi"], "messages is not a list of objects"),
    ([], "no messages"),
    ([user()], "no assistant turn"),
    ([{"role": "robot", "content": "x"}, bot()], "unknown role"),
    ([{"content": "x"}, bot()], "unknown role"),
    ([user([{"type": "text", "text": "x"}]), bot()], "content is not a string"),
    ([user(None), bot()], "content is not a string"),
    ([user(), bot(None)], "content is not a string"),
    ([user(), bot("x", reasoning_content=["r"])], "reasoning is not a string"),
    ([user(), bot(" \n")], "empty assistant turn"),
    ([user(tool_calls=[CALL]), bot()], "tool calls outside an assistant turn"),
    ([user(), calling("f")], "malformed tool call"),
    ([user(), calling({"function": {"arguments": {}}})], "malformed tool call"),
    ([user(), calling({"function": {"name": "f", "arguments": "{"}})], "malformed tool call"),
    ([user(), calling({"function": {"name": "f", "arguments": "[1]"}})], "malformed tool call"),
    ([user(), bot(tool_calls={"function": "f"})], "malformed tool call"),
    ([user(), tool(), bot()], "tool message without a tool call"),
    ([user(), calling(CALL), tool(), bot()], "tool message without tool_call_id"),
    ([user(), calling(CALL), tool(tool_call_id="c2"), bot()], "tool_call_id of no tool call"),
]


@pytest.mark.parametrize("messages", VALID)
def test_a_conversation_to_train_on_is_accepted(messages):
    assert validate_messages(messages) is None


@pytest.mark.parametrize(("messages", "reason"), INVALID)
def test_a_conversation_that_cannot_be_trained_on_has_a_reason(messages, reason):
    assert validate_messages(messages) == reason


@pytest.mark.parametrize("name", CHAT_FORMATS)
def test_the_example_of_every_format_becomes_the_same_messages(name):
    chosen = CHAT_FORMATS[name]
    assert chosen.to_messages(chosen.example, ChatFields()) == [user("2+2?"), bot("4")]
    if not chosen.reads:
        return
    renamed = {f"my_{field}": value for field, value in chosen.example.items()}
    fields = ChatFields(**{setting: f"my_{setting.removesuffix('_field')}" for setting in chosen.reads})
    assert chosen.to_messages(renamed, fields) == [user("2+2?"), bot("4")]


@pytest.mark.parametrize(("number", "text"), [(4, "4"), (0.5, "0.5"), (Decimal("1.50"), "1.50"), (0, "0")])
def test_a_number_in_a_pair_is_its_text(number, text):
    assert from_prompt_response({"prompt": "2+2?", "response": number}, ChatFields()) == [user("2+2?"), bot(text)]
    alpaca = CHAT_FORMATS["alpaca"].to_messages
    assert alpaca({"instruction": "Double it.", "input": number, "output": "?"}, ChatFields()) == [
        user(f"Double it.\n\n{text}"), bot("?"),
    ]  # fmt: skip


@pytest.mark.parametrize(("field", "message"), [("prompt", "no question: 'prompt' is nan"), ("response", "no answer")])
def test_a_missing_number_is_neither_a_question_nor_an_answer(field, message):
    with pytest.raises(UserError, match=message):
        from_prompt_response({"prompt": "2+2?", "response": 4} | {field: float("nan")}, ChatFields())


def test_what_is_no_conversation_reaches_validation():
    assert validate_messages(from_messages({"messages": "hi"}, ChatFields())) == "messages is not a list of objects"
    odd = from_sharegpt({"conversations": [{"from": ["bing"], "value": "x"}]}, ChatFields())
    assert validate_messages(odd) == "unknown role"


def test_tool_arguments_become_objects():
    row = {"messages": [calling({"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}})]}
    assert from_messages(row, ChatFields())[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert row["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}', "the row was changed"


def test_a_missing_field_is_named():
    with pytest.raises(UserError) as caught:
        from_messages({"message": []}, ChatFields())
    assert "did you mean 'message'" in str(caught.value)


def test_a_row_is_used_where_its_list_says_so():
    assert is_used_in({"used_in": ["nano_v3", "x"]}, "used_in", "nano_v3")
    assert is_used_in({"for": "x, nano_v3"}, "for", "nano_v3")
    for value in (["nano_v30"], "nano_v30", None, 3, {"nano_v3": 1}):
        assert not is_used_in({"used_in": value}, "used_in", "nano_v3")
    assert not is_used_in({}, "used_in", "nano_v3")
