import json
from decimal import Decimal

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat.formats import CHAT_FORMATS, messages_of
from nemotron_data.chat.rows import (
    ChatFields,
    is_used_in,
    tools_of,
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
    [user(), bot(reasoning_content="x", thinking="x", reasoning="")],
    [user(weight=0), bot(weight=0.0), user(weight=None), bot(weight=1, loss=True, train=None)],
]
INVALID = [
    (None, "messages is not a list of objects"),
    (["hi"], "messages is not a list of objects"),
    ([], "no messages"),
    ([user()], "no assistant turn"),
    ([{"role": "robot", "content": "x"}, bot()], "unknown role: 'robot'; known are system, user, assistant, tool"),
    ([{"content": "x"}, bot()], "unknown role: None; known are system, user, assistant, tool"),
    ([user(), bot(weight=0), user(), bot(train=False)], "no assistant turn that counts in the loss"),
    ([user(), bot(weight=0.5)], "a weight that is neither 0 nor 1: 'weight' is 0.5"),
    ([user(), bot(loss="yes")], "a weight that is neither 0 nor 1: 'loss' is 'yes'"),
    ([user(), bot(loss=False, train=True)], "a turn that both counts in the loss and does not: 'loss' is False and"
                                            " 'train' is True"),
    ([user(), bot(reasoning_content="x", thinking="y")], "two different reasonings in one turn: 'reasoning_content'"
                                                         " and 'thinking'"),
    ([user(train=True), bot()], "a weight outside an assistant turn: 'train' of a turn of the user; only answers are"
                                " learnt"),
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
]  # fmt: skip


@pytest.mark.parametrize("messages", VALID)
def test_a_conversation_to_train_on_is_accepted(messages):
    assert validate_messages(messages) is None


@pytest.mark.parametrize(("messages", "reason"), INVALID)
def test_a_conversation_that_cannot_be_trained_on_has_a_reason(messages, reason):
    assert validate_messages(messages) == reason


@pytest.mark.parametrize("name", CHAT_FORMATS)
def test_the_example_of_every_format_becomes_the_same_messages(name):
    chosen = CHAT_FORMATS[name]
    assert messages_of(chosen.example) == messages_of(chosen.example, name) == [user("2+2?"), bot("4")]
    if not chosen.settings:
        return
    renamed = {f"my_{field}": value for field, value in chosen.example.items()}
    fields = ChatFields(**{setting: f"my_{setting.removesuffix('_field')}" for setting in chosen.settings})
    assert messages_of(renamed, name, fields) == [user("2+2?"), bot("4")]


@pytest.mark.parametrize(("number", "text"), [(4, "4"), (0.5, "0.5"), (Decimal("1.50"), "1.50"), (0, "0")])
def test_a_number_in_a_pair_is_its_text(number, text):
    assert messages_of({"prompt": "2+2?", "response": number}, "prompt_response") == [user("2+2?"), bot(text)]
    assert messages_of({"instruction": "Double it.", "input": number, "output": "?"}) == [
        user(f"Double it.\n\n{text}"), bot("?"),
    ]  # fmt: skip


@pytest.mark.parametrize(("field", "message"), [("prompt", "no question: 'prompt' is nan"), ("response", "no answer")])
def test_a_missing_number_is_neither_a_question_nor_an_answer(field, message):
    with pytest.raises(UserError, match=message):
        messages_of({"prompt": "2+2?", "response": 4} | {field: float("nan")}, "prompt_response")


def test_what_is_no_conversation_reaches_validation():
    assert validate_messages(messages_of({"messages": "hi"}, "messages")) == "messages is not a list of objects"
    odd = messages_of({"conversations": [{"from": ["bing"], "value": "x"}]}, "sharegpt")
    assert str(validate_messages(odd)).startswith("unknown role: ['bing']")


MESSAGES, SHAREGPT = [user(), bot()], [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *MESSAGES]
ROWS = {
    "messages": {"messages": MESSAGES},
    "sharegpt": {"conversations": SHAREGPT},
    "prompt_response": {"prompt": "hi", "response": "ho"},
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("field", ["system", "system_prompt", "System"])
def test_a_system_prompt_beside_the_turns_is_the_first_of_them(name: str, field: str) -> None:
    def read(row: dict) -> list[dict]:
        return messages_of(row, name)

    first, *others = read({field: "Be brief.", **ROWS[name]})
    assert (first, others) == (WITH_SYSTEM[0], read(ROWS[name]))
    assert read({field: [{"type": "text", "text": "Be brief."}], **ROWS[name]}) == [first, *others]
    for none in (None, "", " "):
        assert read({field: none, **ROWS[name]}) == others
    assert read({"system": None, "system_prompt": "Be brief.", **ROWS[name]}) == [first, *others]


def test_two_system_prompts_are_one_only_where_they_are_the_same() -> None:
    row = {"system": "Be brief.", "messages": WITH_SYSTEM}
    assert messages_of(row, "messages") == WITH_SYSTEM
    with pytest.raises(UserError, match="two system prompts: 'system' and a system turn at the beginning"):
        messages_of({**row, "system": "Be long."}, "messages")
    with pytest.raises(UserError, match="two system prompts: 'system' and 'system_prompt'"):
        messages_of({"system": "a", "system_prompt": "b", "conversations": SHAREGPT}, "sharegpt")
    with pytest.raises(UserError, match="the system prompt is not a text: 'system' is a int"):
        messages_of({"system": 5, "messages": MESSAGES}, "messages")


def test_roles_are_read_in_any_case_and_under_their_other_names() -> None:
    roles = ["developer", "User", "ASSISTANT", "function", "Tool", "robot"]
    turns = [{"role": role, "content": "x"} for role in roles]
    read = [message["role"] for message in messages_of({"messages": turns}, "messages")]
    assert read == ["system", "user", "assistant", "tool", "tool", "robot"]
    turns = [{"from": role, "value": "x"} for role in ["System", "Human", "GPT", "User", "Assistant"]]
    read = [message["role"] for message in messages_of({"conversations": turns}, "sharegpt")]
    assert read == ["system", "user", "assistant", "user", "assistant"]


def test_functions_are_the_tools_of_before() -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    row = {"functions": [{"name": "f"}], "messages": [user(), called, {"role": "function", "content": "3"}, bot()]}
    messages = messages_of(row, "messages")
    assert messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert "function_call" not in messages[1] and validate_messages(messages) is None
    assert tools_of(row, "tools") == [{"type": "function", "function": {"name": "f"}}]
    assert tools_of({"Tools": '[{"name": "f"}]'}, "tools") == tools_of(row)
    assert tools_of({**row, "tools": [{"name": "f"}]}) == tools_of(row)
    with pytest.raises(UserError, match="descriptions of tools twice: in 'tools' and 'functions'"):
        tools_of({**row, "tools": [{"name": "g"}]}, "tools")


@pytest.mark.parametrize("field", ["tools", "functions", "tool_defs", "available_tools", "Tool_Defs", "mine"])
def test_tools_are_read_under_the_names_that_people_give_them(field: str) -> None:
    bare = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    whole = {"type": "function", "function": bare}
    for one in (bare, whole, {"type": "function", **bare}):
        (read,) = tools_of({field: [one]}, "mine") or []
        assert read == whole and list(read["function"]) == list(bare)
    assert tools_of({field: json.dumps([bare])}, "mine") == [whole]
    odd = {"type": "web_search", "filters": None}
    assert tools_of({field: [odd]}, "mine") == [odd]


@pytest.mark.parametrize("tools", ["[not json", 5, True, [5], "[5]", {"name": "f"}, '{"name": "f"}'])
def test_tools_that_are_no_list_of_objects_are_no_tools(tools: object) -> None:
    for field in ("tools", "functions"):
        with pytest.raises(UserError, match=f"^{field} is not a list of objects"):
            tools_of({field: tools}, "tools")
    for nothing in (None, [], "", {}):
        assert tools_of({"tools": nothing}, "tools") is None


def test_a_thought_beside_the_content_is_not_lost_to_one_within_it() -> None:
    parts = [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "4"}]
    for name in ("reasoning_content", "reasoning"):
        with pytest.raises(UserError, match="two different reasonings in one turn"):
            messages_of({"messages": [user(), bot(parts, **{name: "y"})]}, "messages")
        same = messages_of({"messages": [user(), bot(parts, **{name: "x"})]}, "messages")
        assert validate_messages(same) is None


def test_what_a_turn_of_sharegpt_says_besides_is_kept() -> None:
    (turn,) = messages_of({"conversations": [{"from": "gpt", "value": "4", "weight": 0}]}, "sharegpt")
    assert turn == {"role": "assistant", "content": "4", "weight": 0}


def test_a_turn_of_sharegpt_with_two_texts_is_none_of_them() -> None:
    said = {"from": "gpt", "value": "4"}
    with pytest.raises(UserError, match="two different texts in one turn: in 'value' and in 'content'"):
        messages_of({"conversations": [said | {"content": "5"}]}, "sharegpt")
    for same in ("4", None):
        assert messages_of({"conversations": [said | {"content": same}]}, "sharegpt") == [bot("4")]


def test_tool_arguments_become_objects():
    row = {"messages": [calling({"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}})]}
    assert messages_of(row, "messages")[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert row["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}', "the row was changed"


def test_a_missing_field_is_named():
    with pytest.raises(UserError) as caught:
        messages_of({"message": []}, "messages")
    assert "did you mean 'message'" in str(caught.value)


def test_a_row_is_used_where_its_list_says_so():
    assert is_used_in({"used_in": ["nano_v3", "x"]}, "used_in", "nano_v3")
    assert is_used_in({"for": "x, nano_v3"}, "for", "nano_v3")
    for value in (["nano_v30"], "nano_v30", None, 3, {"nano_v3": 1}):
        assert not is_used_in({"used_in": value}, "used_in", "nano_v3")
    assert not is_used_in({}, "used_in", "nano_v3")


@pytest.mark.parametrize(
    ("content", "thought", "answer"),
    [
        ("why\n</think>\n\n4", "why", "4"),
        ("\n</think>4", "", "4"),
        ("<think>why</think>4", None, "<think>why</think>4"),
        ("a</think>b</think>", None, "a</think>b</think>"),
        ("4", None, "4"),
    ],
)
def test_a_thought_that_only_ends_is_reasoning(content: str, thought: str | None, answer: str) -> None:
    (read,) = messages_of({"messages": [bot(content)]}, "messages")
    assert (read.get("reasoning_content"), read["content"]) == (thought, answer)
    (asked,) = messages_of({"messages": [user(content)]}, "messages")
    assert asked["content"] == content
    (apart,) = messages_of({"messages": [bot(content, reasoning="r")]}, "messages")
    assert apart["content"] == content
