"""The table of chat formats is open: a package adds one by an entry point."""

import json
import pickle
import re
import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from chat_support import CALL, bot, calling, tool, user
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemotron_data.chat.formats import CHAT_FORMATS, check_format, find_format, format_sources, messages_of, recognise
from nemotron_data.chat.prompt import asked_messages, conversation_of
from nemotron_data.chat.rows import (
    Arguments,
    ChatFields,
    arguments_of,
    is_used_in,
    parsed_call,
    plain_message,
    to_json,
    tools_of,
    validate_messages,
)
from nemotron_data.chat.template import ChatTemplate, find_template
from nemotron_data.chat.thought import after_thought, opens_thought, whole_answer
from nemotron_shared.system.errors import UserError

NO_ARGUMENTS = ("", " ", None, "null", "{}", {})
MALFORMED = "malformed tool call"
NO_OBJECT = "tool_calls[0].function.arguments is not an object, nor the JSON text of one"
VALID = [
    [user(), bot()],
    [bot("greeting first")],
    [{"role": "system", "content": ""}, user(""), bot("", reasoning_content="r")],
    [user(), calling(CALL), tool(tool_call_id="c1"), bot()],
    [user(), calling({"function": {"name": "f", "arguments": '{"a": 1}'}}), tool(), bot()],
    *([user(), calling({"function": {"name": "now", "arguments": given}}), tool(), bot()] for given in NO_ARGUMENTS),
    [user(), calling({"function": {"name": "now"}}), tool(), bot()],
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
    ([user(), bot("<think>x</think>4", reasoning="y")], "two reasonings in one turn: 'reasoning', and in <think> at the"
                                                        " beginning of the content"),
    ([user(train=True), bot()], "a weight outside an assistant turn: 'train' of a turn of the user; only answers are"
                                " learnt"),
    ([user([{"type": "text", "text": "x"}]), bot()], "content is not a string"),
    ([user(None), bot()], "content is not a string"),
    ([user(), bot(None)], "content is not a string"),
    ([user(), bot("x", reasoning_content=["r"])], "reasoning is not a string"),
    ([user(), bot(" \n")], "empty assistant turn"),
    ([user(tool_calls=[CALL]), bot()], "tool calls outside an assistant turn"),
    ([user(), calling("f")], f"{MALFORMED}: messages[1].tool_calls[0] has no object in 'function'"),
    ([user(), calling(CALL, {"function": {"arguments": {}}})],
     f"{MALFORMED}: messages[1].tool_calls[1].function.name is not a text"),
    ([user(), calling({"function": {"name": "f", "arguments": "{"}})], f"{MALFORMED}: messages[1].{NO_OBJECT}"),
    ([user(), calling({"function": {"name": "f", "arguments": "[1]"}})], f"{MALFORMED}: messages[1].{NO_OBJECT}"),
    ([user(), calling({"function": {"name": "f", "arguments": 3}})], f"{MALFORMED}: messages[1].{NO_OBJECT}"),
    ([user(), bot(tool_calls={"function": "f"})], f"{MALFORMED}: messages[1].tool_calls is not a list"),
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


@pytest.mark.parametrize("given", [*NO_ARGUMENTS, '{"a": 1.50}', "{", "[1]", 3])
def test_a_call_is_judged_alike_in_training_and_as_a_prompt(given: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": given}}
    turns = [user("Time?"), calling(call), {"role": "tool", "tool_call_id": "c", "content": "noon"}]
    learnt = messages_of({"messages": [*turns, bot("Noon.")]})
    reason = validate_messages(learnt)
    if reason is None:
        assert asked_messages(turns) == learnt[:-1]
        return
    assert reason == f"{MALFORMED}: messages[1].{NO_OBJECT}"
    with pytest.raises(ValueError, match=re.escape(f"messages[1]: {MALFORMED}: {NO_OBJECT}")):
        asked_messages(turns)


BY_TEXT = bot('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
UNNAMED = {"function": {"name": "now", "arguments": {}}}


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([calling(CALL), tool(tool_call_id="c1")], None),
        ([calling(UNNAMED), tool()], None),
        ([calling(UNNAMED), tool(tool_call_id="any")], None),
        ([calling(CALL, UNNAMED), tool(), tool(tool_call_id="c1")], None),
        ([BY_TEXT, tool()], None),
        ([calling(CALL), tool(tool_call_id="c1"), bot(), user(), tool(tool_call_id="c1")], None),
        ([tool()], "tool message without a tool call"),
        ([tool(tool_call_id="c1"), calling(CALL)], "tool message without a tool call"),
        ([bot("Wait."), tool(tool_call_id="c1")], "tool message without a tool call"),
        ([calling(CALL), tool()], "tool message without tool_call_id"),
        ([calling(CALL), tool(tool_call_id="c2")], "tool_call_id of no tool call"),
    ],
)
def test_a_result_is_judged_alike_in_training_and_as_a_prompt(turns: list[Any], reason: str | None) -> None:
    turns = [user("Time?"), *turns]
    learnt = messages_of({"messages": [*turns, bot("Noon.")]})
    assert validate_messages(learnt) == reason
    if reason is None:
        assert asked_messages(turns) == learnt[:-1]
        return
    place = next(number for number, turn in enumerate(turns) if turn["role"] == "tool")
    with pytest.raises(ValueError, match=re.escape(f"messages[{place}]: {reason}")):
        asked_messages(turns)


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


@pytest.mark.parametrize(
    "content", ["4", "<think></think>4", "<think>\n\n</think>\n\n4", "The mark is <think>x</think>."]
)
def test_a_thought_beside_a_content_without_one_is_the_only_one(content: str) -> None:
    assert validate_messages([user(), bot(content, reasoning_content="y")]) is None


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
        ("only what follows `</think>` is judged", None, "only what follows `</think>` is judged"),
        ("say.split('</think>')", None, "say.split('</think>')"),
        ('why</think>"4"', "why", '"4"'),
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


CODE = """
def lines(row):
    return [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]

number = 3
"""


def install(place: Path, package: str, *formats: str, code: str = CODE) -> None:
    """What an installer leaves of a package: its module, and what its metadata says of entry points."""
    (place / f"{package}.py").write_text(code)
    metadata = place / f"{package}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = [f"{name} = {package}:{function}" for name, _, function in (entry.partition("=") for entry in formats)]
    (metadata / "entry_points.txt").write_text("[nemotron.chat_formats]\n" + "\n".join(lines) + "\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_fields_of_any_name_are_suggested_as_the_shell_and_the_command_line_read_them() -> None:
    row = {"nr": 3, "Customer said": "2+2?", "Agent's reply (final)": "4"}
    with pytest.raises(UserError, match="no known chat format") as caught:
        recognise(row)
    words = shlex.split(str(caught.value.remedy).partition("the answer: ")[2])
    read = OverridesParser.create().parse_overrides(words)
    fields = {one.key_or_group: one.value() for one in read}
    assert fields == {
        "data_prep.prompt_field": "Customer said",
        "data_prep.response_field": "Agent's reply (final)",
    }


def test_a_package_adds_a_format(place: Path) -> None:
    install(place, "plain_formats", "lines=lines")
    assert check_format("lines") == "lines"
    found = find_format("lines").to_messages({"instruction": "2+2?", "output": "4"})
    assert [message["content"] for message in found] == ["2+2?", "4"]
    with pytest.raises(UserError, match="the chat format 'lines' fails: KeyError: 'instruction'"):
        find_format("lines").to_messages({"question": "2+2?"})


@pytest.mark.parametrize(
    "gives", ["None", "3", "float('nan')", "'a text'", "row", "[None]", "['text']", "(one for one in [])", "({},)",
              "1 / 0", "[{'role': 'user', 'content': float('nan')}]", "[{'role': 'user', 'content': '\\ud800'}]"],
)  # fmt: skip
def test_what_a_format_of_a_package_gives_is_checked_at_every_row(place: Path, gives: str) -> None:
    name = f"broken_{abs(hash(gives))}"
    install(place, name, f"{name}=lines", code=f"def lines(row):\n    return {gives}\n")
    with pytest.raises(UserError, match=f"the chat format '{name}' (gives .*, not a list of messages|fails: )"):
        find_format(name).to_messages({"instruction": "2+2?"})


def test_data_is_made_again_when_the_code_of_a_format_changes(place: Path) -> None:
    install(place, "changing_formats", "lines=lines")
    (before,) = format_sources("lines")
    assert (before.uri, before.detail["version"]) == ("package:changing_formats", "1.2")
    (place / "changing_formats.py").write_text(CODE + "# changed\n")
    (after,) = format_sources("lines")
    assert after.digest != before.digest
    assert [format_sources(name) for name in CHAT_FORMATS] == [[]] * len(CHAT_FORMATS)


def test_an_unknown_name_lists_what_there_is(place: Path) -> None:
    install(place, "listed_formats", "lines=lines")
    listed = f"there are: auto, {', '.join(CHAT_FORMATS)}, lines"
    for name, wanted in (("mesages", "did you mean 'messages'"), ("vicuna", listed)):
        with pytest.raises(UserError, match=f"no chat format named '{name}'") as caught:
            check_format(name)
        assert wanted in str(caught.value.remedy) and "lines" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("function", "message"), [("missing", "cannot be loaded: AttributeError"), ("number", "is not a function")]
)
def test_a_broken_package_is_named(place: Path, function: str, message: str) -> None:
    install(place, f"broken_{function}", f"lines={function}")
    with pytest.raises(UserError, match=message) as caught:
        find_format("lines")
    assert f"broken_{function}" in caught.value.message


def test_two_packages_with_one_name_are_refused(place: Path) -> None:
    install(place, "first_formats", "lines=lines")
    install(place, "second_formats", "lines=lines")
    with pytest.raises(UserError, match="offered by first_formats and second_formats"):
        check_format("lines")


SPELLED = '{"city": "Oslo", "sum": 1.50, "all": [1e3, -0.0, 2]}'
FORMS: dict[str, Any] = {
    "object": json.loads(SPELLED),
    "text": SPELLED,
    "compact": '{"city":"Oslo","sum":1.50}',
    "empty": "",
    "null": None,
    "text of null": "null",
}


def shown(call: str, given: Any, **message: Any) -> str:
    """What a template with this way to write a call makes of arguments."""
    source = "{% for m in messages %}{% for call in m.tool_calls or [] %}" + call + "{% endfor %}{% endfor %}"
    function = {"name": "f", "arguments": given}
    turns = [{"role": "assistant", "content": None, "tool_calls": [{"function": function}], **message}]
    return ChatTemplate(source).render(turns)


@pytest.mark.parametrize(
    ("form", "text", "as_json"),
    [
        ("object", '{"city": "Oslo", "sum": 1.5, "all": [1000.0, -0.0, 2]}', None),
        ("text", SPELLED, SPELLED),
        ("compact", FORMS["compact"], '{"city": "Oslo", "sum": 1.50}'),
        ("empty", "", "{}"),
        ("null", "{}", "{}"),
        ("text of null", "null", "{}"),
    ],
)
def test_every_form_is_shown_as_text_and_as_an_object(form: str, text: str, as_json: str | None) -> None:
    given, arguments = FORMS[form], "call.function.arguments"
    for printed in (f"{{{{ '' + {arguments} + '' }}}}", f"{{{{ {arguments} }}}}", f"{{{{ '' ~ {arguments} }}}}"):
        assert shown(printed, given) == text
    assert shown(f"{{{{ {arguments} | tojson }}}}", given) == (as_json or text)
    each = "{% for k, v in ARGS | items %}{{ k }}={{ v }},{% endfor %}".replace("ARGS", arguments)
    numbers = {"object": "city=Oslo,sum=1.5,all=[1000.0, -0.0, 2],", "compact": "city=Oslo,sum=1.50,"}
    assert shown(each, given) == numbers.get(form, shown(each, given))
    assert shown(f"{{{{ {arguments} is mapping }}}}", given) == "True"
    assert shown(f"{{{{ {arguments} is string }}}}", given) == "False"


def test_a_text_has_the_methods_of_texts_and_an_object_its_keys() -> None:
    assert shown("{{ call.function.arguments.strip() }}", '  {"a": 1} ') == '{"a": 1}'
    assert shown("{{ call.function.arguments.a }}", '{"a": 1}') == "1"
    assert shown("{{ call.function.arguments.title }}", {"title": "x"}) == "x"
    assert shown("{{ call.function | tojson(indent=1, sort_keys=true) }}", '{"b": 1.0e2}') == (
        '{\n "arguments": {\n  "b": 1.0e2\n },\n "name": "f"\n}'
    )


@pytest.mark.parametrize("given", ["{", "[1]", "5", 5, [1], '"a"', "[" * 10**5])
def test_what_is_no_object_is_none(given: Any) -> None:
    assert arguments_of(given) is None
    call = {"function": {"name": "f", "arguments": given}}
    assert parsed_call(call) is call


def test_calls_in_other_forms_are_openais() -> None:
    whole = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    bare = {"name": "f", "arguments": {"a": 1}}
    for call in (bare, {"function": bare, "type": "function"}, {"name": "f", "parameters": '{"a": 1}'}):
        assert parsed_call(call) == whole
    assert parsed_call({"function": {"name": "f"}})["function"] == {"name": "f", "arguments": {}}
    read = plain_message({"role": "assistant", "content": None, "tool_calls": json.dumps([whole])})
    assert read["tool_calls"] == [whole]


def test_they_stay_what_they_are_on_their_way_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(arguments_of(SPELLED)))
    assert type(sent) is Arguments and str(sent) == SPELLED and to_json(sent) == SPELLED
    assert to_json({"a": sent, "b": "\ufdd41\ufdd5", "c": "1.50"}, ensure_ascii=True) == (
        '{"a": ' + SPELLED + ', "b": "\\ufdd41\\ufdd5", "c": "1.50"}'
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("{{ m.content or '-' }}", "-f"),
        ("{{ m.content + '' }}", "f"),
        ("{{ m.content }}", "f"),
        ("{{ m['content'] | default('(none)') }}", "(none)f"),
        ("{{ 'null' if m.content is none else m.content + '' }}", "nullf"),
    ],
)
@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_a_call_without_words_is_shown_by_templates_of_every_kind(answer: str, text: str, content: Any) -> None:
    source = (
        "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% else %}" + answer + "{% for c in"
        " m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endif %}{% endfor %}"
    )
    turns = [{"role": "assistant", **content, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
    assert ChatTemplate(source).render(turns) == text


PLAIN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""
ANSWERS = """{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }};{% endgeneration %}
{% else %}Q:{{ m.content }}
{% endif %}{% endfor %}"""
IN_A_MACRO = (
    "{% macro said(m) %}{% generation %}{{ m.content }};{% endgeneration %}{% endmacro %}"
    "{% for m in messages %}{{ 'A:' + said(m) if m.role == 'assistant' else 'Q:' + m.content }}{% endfor %}"
)
TEMPLATES = {"plain": PLAIN, "marked": ANSWERS, "in a macro": IN_A_MACRO, "nano3": find_template("nano3")}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("wish", [{"weight": 0}, {"loss": False}, {"train": 0.0}])
def test_its_text_is_not_learnt_and_all_else_is_as_before(name: str, wish: dict) -> None:
    template = ChatTemplate(TEMPLATES[name], eos_token="<|im_end|>")
    messages = [user("2+2?"), bot("four"), user("3+3?"), bot("six"), user("4+4?"), bot("eight")]
    text, all_spans = template.render_with_spans(messages)
    assert len(all_spans) == 3
    for number in range(3):
        weighted = [{**message, **wish} if i == 2 * number + 1 else message for i, message in enumerate(messages)]
        found = template.render_with_spans(weighted)
        assert found == (text, [span for i, span in enumerate(all_spans) if i != number])
    assert template.render_with_spans([user("2+2?"), bot("four", **wish)])[1] == []


def test_a_call_that_does_not_count_is_told_from_the_answer_behind_it() -> None:
    template = ChatTemplate(find_template("nano3"))
    messages = [user("2+1?"), {**calling(CALL), "weight": 0}, tool(tool_call_id="c1"), bot("three")]
    text, spans = template.render_with_spans(messages)
    assert len(spans) == 1 and "three" in text[slice(*spans[0])]


def test_marks_that_are_not_one_for_each_answer_cannot_be_told_apart() -> None:
    once = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}{% generation %}{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}{% endgeneration %}"  # noqa: E501
    with pytest.raises(UserError, match="marks 1 generated parts for 2 answers"):
        ChatTemplate(once).render_with_spans([user("a"), bot("b", weight=0), user("c"), bot("d")])


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


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("assistant\n<think>", True),
        ("assistant\n<think>\n", True),
        ("<think>a</think>b<|im_end|>assistant\n<think>\n\n", True),
        ("assistant\n<think></think>", False),
        ("assistant\n<think>\n\n</think>\n\n", False),
        ("user\nwhat is <think>?\nassistant\n", False),
        ("", False),
    ],
)
def test_whether_a_prompt_ends_in_a_thought(prompt: str, opened: bool) -> None:
    assert opens_thought(prompt) == opened
    assert whole_answer(prompt, "7") == ("<think>7" if opened else "7")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"), ("<|START_THINKING|>", "<|END_THINKING|>"),
     ("\u25c1think\u25b7", "\u25c1/think\u25b7"), ("<thinking>", "</thinking>"), ("<reasoning>", "</reasoning>")],
)  # fmt: skip
def test_a_thought_in_other_marks_is_one(opening: str, closing: str) -> None:
    for prompt, begin in ((f"assistant\n{opening}\n", ""), ("assistant\n", f"\n{opening}")):
        assert whole_answer(prompt, f"{begin}3+4{closing}7") == "<think>3+4</think>7"
        assert after_thought(whole_answer(prompt, f"{begin}3+4 is 7")) is None
    assert (
        whole_answer("assistant\n", f"{opening[:3]} and {opening} are marks")
        == f"{opening[:3]} and {opening} are marks"
    )


@pytest.mark.parametrize(
    ("answer", "follows"),
    [
        ("7", "7"),
        ("<think>3+4</think>\n 7\n", "\n 7\n"),
        ("3+4</think>7", "7"),
        ("<think>3+4", None),
        ("<think>a</think>7<think>or", None),
        ("<think>a</think>8<think>b</think>7", "7"),
        ("<think></think>", ""),
    ],
)
def test_what_follows_a_thought(answer: str, follows: str | None) -> None:
    assert after_thought(answer) == follows


def test_the_documents_list_each_format() -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    table = text.partition("| `data_prep.format` | a row |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {*CHAT_FORMATS, "auto"}
