import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat import ChatFields, is_used_in, to_messages, validate_messages
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


def test_rows_of_three_shapes_become_messages():
    wanted = [user("2+2?"), bot("4")]
    assert to_messages({"messages": wanted}, ChatFields()) == wanted
    assert to_messages({"chat": wanted}, ChatFields(messages_field="chat")) == wanted
    pair = ChatFields("prompt_response", prompt_field="question", response_field="answer")
    assert to_messages({"question": "2+2?", "answer": "4"}, pair) == wanted
    shared = {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
    assert to_messages(shared, ChatFields("sharegpt")) == wanted


def test_what_is_no_conversation_reaches_validation():
    assert validate_messages(to_messages({"messages": "hi"}, ChatFields())) == "messages is not a list of objects"
    odd = to_messages({"conversations": [{"from": ["bing"], "value": "x"}]}, ChatFields("sharegpt"))
    assert validate_messages(odd) == "unknown role"


def test_tool_arguments_become_objects():
    row = {"messages": [calling({"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}})]}
    assert to_messages(row, ChatFields())[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert row["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}', "the row was changed"


def test_a_missing_field_is_named():
    with pytest.raises(UserError) as caught:
        to_messages({"message": []}, ChatFields())
    assert "did you mean 'message'" in str(caught.value)


def test_a_row_is_used_where_its_list_says_so():
    assert is_used_in({"used_in": ["nano_v3", "x"]}, "used_in", "nano_v3")
    assert is_used_in({"for": "x, nano_v3"}, "for", "nano_v3")
    for value in (["nano_v30"], "nano_v30", None, 3, {"nano_v3": 1}):
        assert not is_used_in({"used_in": value}, "used_in", "nano_v3")
    assert not is_used_in({}, "used_in", "nano_v3")
