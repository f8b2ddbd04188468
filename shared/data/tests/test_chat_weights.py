"""A turn that says that it does not count in the loss: it is read, and not learnt."""

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat.template import ChatTemplate, find_template
from nemotron_shared.errors import UserError

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
