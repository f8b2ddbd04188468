"""Templates that put more into an answer's turn than the answer: the mask is the one marked by hand, or none."""

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat.template import ChatTemplate
from nemotron_shared.errors import UserError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|im_end|>\n"
SYSTEM = {"role": "system", "content": "You are a helpful assistant"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
TWO = [user("hi there friend"), bot("yo"), user("bye"), bot("ok")]
THREE = [*TWO, user("q3"), bot("a3")]
CALLS = [user(), calling(CALL) | {"content": "c"}, tool(), bot()]
TIME = "{% if m.tool_calls %}{{ strftime_now('%S%f') }}{% endif %}"
NOTE = "<|im_start|>system\nReminder: be nice<|im_end|>\n"


def before(text: str) -> str:
    """ChatML, with this put before contents of the assistant."""
    return CHATML.replace("{{ m.content }}", f"{{% if m.role == 'assistant' %}}{text}{{% endif %}}{{{{ m.content }}}}")


def behind(condition: str, text: str = NOTE) -> str:
    """ChatML, with this put behind turns."""
    return CHATML.replace(END, f"{END}{{% if {condition} %}}{text}{{% endif %}}")


def with_system(text: str) -> str:
    return before(f"{{% if messages[0].role == 'system' %}}{text}{{% endif %}}")


def headers(opened: str, prompt: str) -> str:
    return (
        f"{{% for m in messages %}}{opened}{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
    )


PAIRS = "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</u><a>{% else %}{{ m.content }}</a>ADD{% endif %}{% endfor %}"  # noqa: E501
SAID = ["yo" + END, "ok" + END]
HOSTILE = {
    "next header in words": (
        "User: {% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\nBot: {% else %}{{ m.content }}</s>\n"
        "User: {% endif %}{% endfor %}", TWO, None, ["yo</s>\n", "ok</s>\n"]),
    "next header in words, no end": (
        "User: {% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\nBot: {% else %}{{ m.content }}\n"
        "User: {% endif %}{% endfor %}", TWO, None, ["yo\n", "ok\n"]),
    "next header later on": (
        PAIRS.replace("ADD", "{% if loop.index0 > 2 and not loop.last %}<u>{% endif %}"), THREE, None,
        ["yo</a>", "ok</a>", "a3</a>"]),
    "first header apart": (
        PAIRS.replace("<u>", "{{ '<first>' if loop.first }}", 1).replace("ADD", "<u>"),
        TWO, None, ["yo</a>", "ok</a>"]),
    "reminder later on": (
        behind("m.role == 'assistant' and not loop.last and loop.index0 > 2"), THREE, None, [*SAID, "a3" + END]),
    "reminder with a system prompt": (
        behind("m.role == 'assistant' and messages[0].role == 'system'"), [SYSTEM, *TWO], None, SAID),
    "reminder behind calls": (
        behind("m.tool_calls"), CALLS, None,
        ['c<tool_call>{"name": "add", "arguments": {"a": 1, "ü": "é"}}</tool_call>' + END, "a" + END]),
    "time before and behind calls": (
        CHATML.replace("{% for c", TIME + "{% for c").replace(
            "{% endfor %}<|im_end|>", "{% endfor %}" + TIME + "<|im_end|>"),
        CALLS, None, ['c<tool_call>{"name": "add", "arguments": {"a": 1, "ü": "é"}}</tool_call>' + END, "a" + END]),
    "reminder in long answers": (
        CHATML.replace("{{ m.content }}", "{{ m.content }}{{ 'Reminder' if m.content | length > 20 }}"),
        [user(), bot("a" * 30)], None, ["a" * 30 + END]),
    "note in long conversations": (before("{% if messages | length > 4 %}[long] {% endif %}"), THREE, None,
                                   [*SAID, "a3" + END]),
    "beginning of the system prompt": (
        with_system("SYS: {{ messages[0].content[:10] }}\n"), [SYSTEM, *TWO], None, SAID),
    "system prompt cut": (
        with_system("SYS: {{ messages[0].content | truncate(12) }}\n"), [SYSTEM, *TWO], None, SAID),
    "first word of the question": (
        with_system("{{ messages[loop.index0 - 1].content.split()[0] }}: "), [SYSTEM, *TWO], None, SAID),
    "first letter of the question": (
        before("{% if messages | length > 4 %}{{ messages[loop.index0 - 1].content[0] }} {% endif %}"), THREE, None,
        [*SAID, "a3" + END]),
    "name of the user": (
        with_system("Dear {{ messages[loop.index0 - 1].name }}, "),
        [SYSTEM, user(name="Bob"), bot()], None, ["a" + END]),
    "tools": (before("{% if tools %}TOOLS: {{ tools | tojson }}\n{% endif %}"), TWO, TOOLS, SAID),
    "context": (
        before("{% if m.context %}<context>{{ m.context }}</context>{% endif %}"),
        [user(), bot(context="retrieved")], None, ["a" + END]),
    "time": (before("{% if m.ts %}[{{ m.ts }}] {% endif %}"), [user(), bot(ts="12:00")], None, ["a" + END]),
    "name in the header": (
        headers("<|im_start|>{{ m.role }}{% if m.name %} name={{ m.name }}{% endif %}\n", "<|im_start|>assistant\n"),
        [user(), bot(name="bob")], None, ["a" + END]),
    "seconds in the header": (
        headers("<|im_start|>{{ m.role }} {{ strftime_now('%S%f') }}\n", "<|im_start|>assistant\n"), TWO, None, SAID),
    "a role that thinks": (headers("<|{{ m.role }}_think|>\n", "<|assistant_think|>\n"), TWO, None, SAID),
    "no thought": (headers("[{{ m.role }}]<no_think>\n", "[assistant]<no_think>\n"), TWO, None, SAID),
    "thinking off": (
        headers("<|im_start|>{{ m.role }}<thinking_mode=off>\n", "<|im_start|>assistant<thinking_mode=off>\n"),
        TWO, None, SAID),
}  # fmt: skip
RIGHT = {"a role that thinks", "no thought", "thinking off"}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_mask_is_right_or_refused(name: str) -> None:
    source, messages, tools, right = HOSTILE[name]
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    try:
        text, spans = template.render_with_spans(messages, tools)
    except UserError as error:
        assert name not in RIGHT, error
        assert "{% generation %}" in (error.remedy or "")
        return
    assert [text[start:end] for start, end in spans] == right


def test_what_these_templates_share_is_not_refused() -> None:
    template = ChatTemplate(CHATML, eos_token="</s>")
    odd = [user(), bot("<b> a </b>", name="bob", weight=1), *CALLS, user(""), bot("  12:00 system\nReminder")]
    for messages in (TWO, THREE, [SYSTEM, *TWO], odd):
        _, spans = template.render_with_spans(messages, TOOLS)
        assert len(spans) == sum(message["role"] == "assistant" for message in messages)


def test_words_around_thoughts_refuse_only_conversations_with_thoughts() -> None:
    template = ChatTemplate(before("{% if m.reasoning_content %}My thoughts: {{ m.reasoning_content }} {% endif %}"))
    text, spans = template.render_with_spans(TWO)
    assert [text[start:end] for start, end in spans] == SAID
    with pytest.raises(UserError, match="more than the answer"):
        template.render_with_spans([user(), bot(reasoning_content="why")])
