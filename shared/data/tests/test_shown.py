"""What a template does not show of a conversation is known, whatever its texts."""

from typing import Any

import pytest

from nemotron_data.chat.shown import Hidden, calls_untold, told, with_thought
from nemotron_data.chat.template import ChatTemplate, find_template

TURN = "{{ '<|' + m.role + '|>' + (m.content or '') + '<|end|>' }}"
PLAIN = "{% for m in messages %}" + TURN + "{% endfor %}"
LESS = {
    "tools": PLAIN,
    "tool calls": PLAIN,
    "tool results": "{% for m in messages %}{% if m.role != 'tool' %}" + TURN + "{% endif %}{% endfor %}",
    "system prompts": "{% for m in messages %}{% if m.role != 'system' %}" + TURN + "{% endif %}{% endfor %}",
    "reasoning": PLAIN,
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": {"a": "user"}}}
SAYS: dict[str, list[dict[str, Any]]] = {
    "tool calls": [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "tool results": [{"role": "tool", "tool_call_id": "c1", "content": "user"}],
    "system prompts": [{"role": "system", "content": "user"}],
    "reasoning": [{"role": "assistant", "content": "x", "reasoning_content": "user"}],
}
ASKED = {"role": "user", "content": "the user asks"}
TOOLS = [{"type": "function", "function": {"name": "user"}}]


@pytest.mark.parametrize("kind", LESS)
def test_a_template_that_shows_less_is_told_from_one_that_shows_all(kind: str) -> None:
    messages, tools = [ASKED, *SAYS.get(kind, [])], TOOLS if kind == "tools" else None
    assert Hidden(ChatTemplate(LESS[kind])).of(messages, tools) == (kind,)
    assert Hidden(ChatTemplate(find_template("nano3"))).of(messages, tools) == ()
    assert Hidden(ChatTemplate(LESS[kind])).of([ASKED], None) == ()


def test_arguments_alone_are_lost_too_and_thoughts_within_the_text() -> None:
    names = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
    assert Hidden(ChatTemplate(PLAIN + names)).of([ASKED, *SAYS["tool calls"]], None) == ("tool calls",)
    bare = {**CALL, "function": {"name": "get", "arguments": {}}}
    assert Hidden(ChatTemplate(PLAIN + names)).of([ASKED, {"role": "assistant", "tool_calls": [bare]}], None) == ()
    strips = PLAIN.replace("(m.content or '')", "(m.content or '').split('</think>')[-1]")
    within = {"role": "assistant", "content": "<think>\nwhy</think>4"}
    assert Hidden(ChatTemplate(strips)).of([ASKED, within], None) == ("reasoning",)
    assert Hidden(ChatTemplate(PLAIN)).of([ASKED, within], None) == ()
    assert with_thought(within, "Z")["content"] == "<think>\nZ\n</think>4"
    assert Hidden(ChatTemplate(strips)).of([ASKED, within], None, prompt=True) == ()


def test_a_template_that_wants_more_than_a_skeleton_is_not_judged() -> None:
    refuses = ChatTemplate("{{ raise_exception('no') if messages[-1].role == 'tool' }}" + PLAIN)
    assert Hidden(refuses).of([ASKED, *SAYS["tool calls"], *SAYS["tool results"]], TOOLS) == ()


def test_the_sentence() -> None:
    assert told(("tools", "tool calls")) == "the chat template shows no tools, no tool calls"


def test_a_call_is_untold_unless_a_system_prompt_names_it() -> None:
    assert calls_untold([ASKED, *SAYS["tool calls"]], None)
    assert not calls_untold([ASKED, *SAYS["tool calls"]], TOOLS)
    assert not calls_untold([{"role": "system", "content": "You may get()."}, *SAYS["tool calls"]], None)
    assert not calls_untold([ASKED], None)
