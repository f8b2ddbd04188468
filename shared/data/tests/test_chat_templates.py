"""The templates that are shipped, and how one is chosen."""

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat.template import ChatTemplate, find_template, template_file
from nemotron_shared.errors import UserError


def test_a_template_is_a_name_a_file_or_text(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }} é", encoding="utf-8")
    assert find_template(str(file)) == "{{ messages[0].content }} é"
    assert template_file(str(file)) == file
    assert find_template("{% if 1 %}inline{% endif %}") == "{% if 1 %}inline{% endif %}"
    assert template_file("{{ inline }}") is None
    assert "<|im_start|>" in find_template("nano3")
    with pytest.raises(UserError, match="nano4") as caught:
        find_template("nano4")
    assert "did you mean 'nano3'" in str(caught.value)


# What the template of the published Nemotron 3 models gives, written down by hand.
PROMPTED = "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
THINKS = {"role": "assistant", "content": " a ", "reasoning_content": " r\n"}
ADDS = (
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=ü>\né\n</parameter>\n"
    "</function>\n</tool_call>\n"
)
NANO3 = {
    "without reasoning": ([user(), bot(" a ")], PROMPTED + "<think></think>[ a<|im_end|>]\n"),
    "with reasoning": ([user(), THINKS], PROMPTED + "<think>\n[ r\n\n</think>\n a<|im_end|>]\n"),
    "blank reasoning": ([user(), bot("a", reasoning_content=" \n")], PROMPTED + "<think></think>[a<|im_end|>]\n"),
    "own tags": ([user(), bot("<think>x</think>a")], PROMPTED + "[<think>x</think>a<|im_end|>]\n"),
    "earlier reasoning is forgotten": (
        [user(), THINKS, user("2"), bot("b")],
        PROMPTED + "<think></think>[\n a<|im_end|>]\n<|im_start|>user\n2<|im_end|>\n"
        "<|im_start|>assistant\n<think></think>[b<|im_end|>]\n",
    ),
    "a system turn": (
        [{"role": "system", "content": "s"}, user(), bot()],
        PROMPTED.replace("system\n", "system\ns") + "<think></think>[a<|im_end|>]\n",
    ),
    "a call and its answers": (
        [user(), {**calling(CALL, CALL), "content": "c "}, tool(), tool(), bot()],
        PROMPTED + "<think></think>[c\n" + ADDS + ADDS + "<|im_end|>]\n"
        "<|im_start|>user\n" + "<tool_response>\n3\n</tool_response>\n" * 2 + "<|im_end|>\n"
        "<|im_start|>assistant\n<think></think>[a<|im_end|>]\n",
    ),
}


@pytest.mark.parametrize(("messages", "golden"), NANO3.values(), ids=NANO3)
def test_nano3_gives_the_published_text(messages, golden):
    text, spans = ChatTemplate(find_template("nano3")).render_with_spans(messages)
    for start, end in reversed(spans):
        text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
    assert text == golden


def test_nano3_describes_tools():
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "description": " how many ", "enum": [1, 2], "default": [0]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    add = {"name": "add", "description": " adds\n", "parameters": schema, "strict": True}
    text = ChatTemplate(find_template("nano3")).render([user(), bot()], [{"type": "function", "function": add}])
    described = (
        "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
        "<function>\n<name>add</name>\n<description>adds</description>\n<parameters>\n"
        "<parameter>\n<name>n</name>\n<type>integer</type>\n<description>how many</description>\n"
        "<enum>[1, 2]</enum>\n<default>[0]</default>\n</parameter>\n"
        '<additionalProperties>False</additionalProperties>\n<required>["n"]</required>\n</parameters>\n'
        "<strict>True</strict>\n</function>\n</tools>\n\nIf you choose to call a function ONLY reply"
    )
    assert text.startswith(described)
    assert "</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow" in text
    assert "\n</IMPORTANT><|im_end|>\n<|im_start|>user\nq<|im_end|>\n" in text


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, "<think>\n"),
        ({"enable_thinking": False}, "<think></think>"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>"),
    ],
)
def test_nano3_prompts_with_a_thought_or_an_empty_one(options, end):
    text = ChatTemplate(find_template("nano3")).render([user()], add_generation_prompt=True, **options)
    assert text == PROMPTED + end


def test_nano3_keeps_earlier_reasoning_and_states_a_budget_on_request():
    template = ChatTemplate(find_template("nano3"))
    turns = [user(), THINKS, user("2"), bot("b")]
    assert " r\n\n</think>" in template.render(turns, truncate_history_thinking=False)
    assert "2\n\n{thinking token budget: 9}<|im_end|>" in template.render(turns, reasoning_budget=9)
