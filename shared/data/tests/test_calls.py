"""Tool calls are compared by meaning, in every form that models write, and found in conversations."""

import json
from typing import Any

import pytest

from nemotron_data.chat.answers import Call
from nemotron_data.chat.called import as_items, decided_turns, is_conversation
from nemotron_data.chat.confined import open_template
from nemotron_data.chat.prompt import conversation_of
from nemotron_data.chat.rows import turns_of
from nemotron_data.chat.template import find_template
from nemotron_data.rejects import Refused
from nemotron_data.verifier.calls import calls_in, calls_of, same_calls, tools_by_name, tools_shown

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city {now}.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1},
                           "exact": {"type": "boolean"}},
            "required": ["city"],
        },
    },
}  # fmt: skip
TOOLS = tools_by_name([WEATHER])
WANTED = [Call("weather", '{"city": "Kelby", "days": 2}')]
JSON = '{"name": "weather", "arguments": {"city": "Kelby", "days": 2}}'
XML = "<function=weather>\n<parameter=city>\nKelby\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("answer", "bare", "right"),
    [
        (f"<tool_call>\n{JSON}\n</tool_call>", False, True),
        (f"<tool_call>\n{XML}\n</tool_call>", False, True),
        (f"<think>The city is Kelby.</think>Let me see.\n<tool_call>{JSON}</tool_call>", False, True),
        ('<tool_call>{"arguments": {"days": 2.0, "city": " Kelby "}, "name": "weather"}</tool_call>', False, True),
        (JSON.replace("arguments", "parameters"), True, True),
        (f"<|python_tag|>{JSON}<|eom_id|>", True, True),
        (JSON, False, False),
        (f"<think><tool_call>{JSON}</tool_call>", False, False),
        (f"<tool_call>{JSON.replace('2', '3')}</tool_call>", False, False),
        (f"<tool_call>{JSON.replace('2', 'true')}</tool_call>", False, False),
        (f"<tool_call>{JSON.replace('Kelby', 'kelby')}</tool_call>", False, False),
        (f"<tool_call>{JSON.replace('weather', 'wether')}</tool_call>", False, False),
        (f"<tool_call>{JSON}</tool_call><tool_call>{JSON}</tool_call>", False, False),
        (f"<tool_call>{JSON[:-1]}</tool_call>", False, False),
        (f"<tool_call>{JSON}</tool_call><tool_call>nonsense</tool_call>", False, False),
        (f"<tool_call>{JSON[:-1]}</tool_call><tool_call>{JSON}</tool_call>", False, False),
        (f"<tool_call>{JSON}</tool_call><tool_call>", False, False),
        (f"<tool_call>{JSON}</tool_call> It is sunny.", False, True),
        ("It is sunny in Kelby for 2 days.", True, False),
        ('{"name": "Kelby"}', True, False),
        ("", True, False),
    ],
)
def test_a_call_is_right_by_its_meaning(answer: str, bare: bool, right: bool) -> None:
    assert same_calls(calls_of(answer, TOOLS, bare=bare), WANTED, TOOLS) is right


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"city": "Kelby"}, {"city": "Kelby", "days": 1}, True),
        ({"city": "Kelby"}, {"city": "Kelby", "days": 1.0, "exact": None}, True),
        ({"city": "Kelby"}, {"city": "Kelby", "days": 2}, False),
        ({"city": "Kelby"}, {"city": "Kelby", "exact": False}, False),
        ({"city": "Kelby", "exact": True}, {"city": "Kelby", "exact": 1}, False),
        ({"city": None}, {}, False),
        ({"city": ["a", 1, {"b": 2.50}]}, {"city": ["a", 1.0, {"b": 2.5}]}, True),
        ({"city": ["1"]}, {"city": 1}, False),
        ({"city": "1"}, {"city": 1}, False),
        ({"city": 12345678901234567890}, {"city": 12345678901234567891}, False),
        ({"other": 1}, {"city": 1}, False),
        ({"city": 10**40}, {"city": 10**40 + 1}, False),
        ({"city": 10**40}, {"city": 1e40}, True),
        ({"city": -0.0}, {"city": 0}, True),
    ],
)
def test_arguments_are_compared_with_defaults_and_numbers(one: Any, other: Any, same: bool) -> None:
    first, second = ([Call("weather", json.dumps(arguments))] for arguments in (one, other))
    assert same_calls(first, second, TOOLS) is same and same_calls(second, first, TOOLS) is same


@pytest.mark.parametrize("number", ["1e1000000", "-1e1000000", "1e-1000000", "1" + "0" * 4000])
def test_a_number_of_any_size_equals_itself_alone(number: str) -> None:
    said = calls_of(f"<tool_call>{JSON.replace('2', number)}</tool_call>", TOOLS)
    assert len(said) == 1
    assert same_calls(said, said, TOOLS) and not same_calls(said, WANTED, TOOLS)
    xml = calls_of(f"<tool_call>{XML.replace('2', number)}</tool_call>", TOOLS)
    assert len(xml) == 1 and not same_calls(xml, WANTED, TOOLS)


def test_an_exponent_beyond_those_of_decimal_is_no_error() -> None:
    number = f"1e{'9' * 30}"
    assert calls_of(f"<tool_call>{JSON.replace('2', number)}</tool_call>", TOOLS) == []
    call = Call("weather", f'{{"days": {number}}}')
    assert same_calls([call], [call], TOOLS) and not same_calls([call], WANTED, TOOLS)


@pytest.mark.parametrize("depth", [300, 500, 900, 100_000])
def test_arguments_that_are_nested_deeply_are_wrong(depth: int) -> None:
    said = calls_of(f"<tool_call>{JSON.replace('2', '[' * depth + ']' * depth)}</tool_call>", TOOLS)
    assert not same_calls(said, WANTED, TOOLS)


def test_an_answer_in_json_calls_nothing() -> None:
    assert calls_of('{"name": "Kelby"}', TOOLS, bare=True) == calls_of(JSON, {}, bare=True) == []
    assert calls_of(f"<tool_call>{JSON}</tool_call>", {}) == WANTED, "a mark tells it without a definition"


def test_several_calls_may_come_in_any_order() -> None:
    other = Call("weather", '{"city": "Oster"}')
    assert same_calls([other, *WANTED], [*WANTED, other], TOOLS)
    assert not same_calls([other, other], [*WANTED, other], TOOLS)
    assert same_calls([], [], TOOLS)


def test_an_expected_answer_states_calls_or_a_text() -> None:
    assert calls_in(JSON) == WANTED and calls_in(f"[{JSON}, {JSON}]") == WANTED * 2
    assert calls_in("[]") == []
    assert [calls_in(text) for text in ("21", "", None, '{"a": 1}', "[1]")] == [None] * 5


@pytest.mark.parametrize("name", ["nano3", "json", "lines"])
def test_tools_are_read_out_of_a_rendered_prompt(name: str) -> None:
    function = json.dumps(WEATHER["function"], indent=2)
    prompt = {
        "json": f"Tools: {json.dumps([WEATHER, {'x': 1}])} {{not json}}\nuser: hi",
        "lines": f"{{% {{'a': 1}}\n<tools>\n{function}\n</tools>",
    }.get(name)
    if prompt is None:
        rows = [{"role": "user", "content": "hi"}]
        source = find_template("nano3")
        prompt = open_template(source, "nano3").render(rows, tools=[WEATHER], add_generation_prompt=True)
    found = tools_shown(prompt)
    assert list(found) == ["weather"]
    schema = found["weather"]["parameters"]
    assert schema["properties"]["days"]["default"] == 1 and schema["required"] == ["city"]


CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kelby"}'}}
TALK = [
    {"role": "system", "content": "Help."},
    {"role": "user", "content": "Weather in Kelby?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "21"},
    {"role": "assistant", "content": "21"},
    {"role": "user", "content": "Thanks!"},
    {"role": "assistant", "content": "You are welcome."},
]


def test_a_conversation_gives_its_calls_and_answers_after_results() -> None:
    called, after = decided_turns({"messages": TALK, "tools": [WEATHER]})
    assert (called.calls, after.calls) == ([Call("weather", '{"city": "Kelby"}')], [])
    assert calls_in(called.expected) == called.calls and after.expected == "21"
    assert called.before == TALK[:2] and [one["role"] for one in after.before] == [one["role"] for one in TALK[:4]]
    assert called.question == "user: Weather in Kelby?"
    assert after.question.endswith('assistant: I look. weather({"city": "Kelby"})\ntool: 21')
    assert is_conversation({"messages": TALK}, "question") and not is_conversation({"question": "?"}, "question")
    with pytest.raises(Refused, match="a conversation without tool calls"):
        decided_turns({"messages": [TALK[1], TALK[4]]})


def test_messages_become_items_and_messages_again() -> None:
    before = decided_turns({"messages": TALK, "tools": [WEATHER]})[1].before
    messages, tools = conversation_of({"input": as_items(before), "tools": [WEATHER]})
    assert tools == [WEATHER]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "tool"]
    assert messages[2]["content"] == "I look."
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == {"city": "Kelby"}
    assert messages[3]["content"] == "21" and turns_of(as_items(TALK[-2:])) == TALK[-2:]
