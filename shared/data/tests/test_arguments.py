"""A call's arguments are object and text in one, and so are its numbers."""

import json
import pickle
from typing import Any

import pytest

from nemotron_data.chat.rows import Arguments, arguments_of, parsed_call, plain_message, to_json
from nemotron_data.chat.template import ChatTemplate

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
