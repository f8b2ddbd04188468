"""Templates from elsewhere: what takes all time or memory, or ends its process, is one error; the rest is unchanged."""

import os
import resource
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat import confined
from nemotron_data.chat.confined import ConfinedTemplate, Overdue, open_template
from nemotron_data.chat.template import SHIPPED, ChatTemplate
from nemotron_shared.system.errors import UserError

GROWS = "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
GREEDY = {
    "a long text": "{{ 'a' * 10000000000 }}",
    "a long list": "{{ [0] * 10000000000 }}",
    "a width in a format": "{{ '%99999999999d' % 5 }}",
    "a width in a new format": "{{ '{:9999999999}'.format(4) }}",
    "a width in a filter": "{{ 'a' | center(9999999999) }}",
    "tojson": "{{ messages | tojson(indent=1000000000) }}",
    "twice as long": GROWS,
    "much text": "{% for i in range(90000) %}{{ 'a' * 100000 }}{% endfor %}",
    "more than a text may have": "{% for i in range(70) %}{{ 'a' * 1000000 }}{% endfor %}",
}
SLOW = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "one step of the interpreter": "{{ ([('a' * 10000)] * 30000) | join | upper | lower | title | length }}" * 99,
    "words": "{{ lipsum(n=100000) }}",
    "a macro twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
}
ENDLESS = {
    "macros in macros": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [user("é \ud800 hi"), bot("yo"), user(), calling(CALL) | {"content": "c"}, tool(), bot("\U0001f600")]


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_a_greedy_template_is_one_error_with_its_name(source: str) -> None:
    with pytest.raises(UserError, match=r"^the chat template takes too much: .*, in own\.jinja\n  correct"):
        open_template(source, "own.jinja").render([user(), bot()])


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_one_that_goes_too_deep_is_one_error(source: str) -> None:
    with pytest.raises(UserError, match="recursion"):
        open_template(source, "own.jinja").render([user(), bot()])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends templates after a second; its program reads the limit when it starts."""
    if confined._here:
        confined._here.end()
    program = "import nemotron_data.chat.confined as p; p.CPU_SECONDS = 1; p.main()"
    popen = confined.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([command[0], "-c", program], **options)

    monkeypatch.setattr(confined.subprocess, "Popen", start)
    yield
    if confined._here:
        confined._here.end()


@pytest.mark.parametrize("name", SLOW)
def test_a_template_that_takes_too_long_is_ended(name: str, hasty: None) -> None:
    def asked() -> str:
        return open_template(SLOW[name], "own.jinja").render([user(), bot()])

    with pytest.raises(Overdue, match=r"more than 10 s of computing, in own\.jinja"):
        asked()
    assert ConfinedTemplate(CHATML, "x").render([user("a")]) == "<|im_start|>user\na<|im_end|>\n", (
        "the next one goes on"
    )


def test_in_a_group_the_one_that_takes_too_much_is_found() -> None:
    source = CHATML + "{% if messages[0].content == 'all' %}{{ 'a' * 10000000000 }}{% endif %}"
    one, two, three = ConfinedTemplate(source, "x").render_all(
        [([user("a"), bot()], None), ([user("all"), bot()], None), ([user("b"), bot()], None)]
    )
    assert isinstance(two, UserError)
    assert "takes too much" in two.message
    assert not isinstance(one, UserError) and not isinstance(three, UserError)


def test_a_text_is_bounded_by_what_it_is_made_of() -> None:
    shows = "{% for i in range(messages[0].content | int) %}{{ messages[1].content }}{% endfor %}"
    template = ConfinedTemplate(shows, "own.jinja")
    assert len(template.render([user("300"), bot("a" * 700)])) == 210_000
    assert len(template.render([user("15"), bot("a" * 1_000_000)])) == 15_000_000
    for times, content in (("30000", "a" * 20), ("20", "a" * 1_000_000)):
        with pytest.raises(UserError, match=r"takes too much: a text of [\d,]+ characters, where .*, in own\.jinja"):
            template.render([user(times), bot(content)])


def test_it_renders_as_the_template_does_here() -> None:
    options = {"strftime_now": datetime(2026, 1, 2).strftime, "note": {"a": [1, None, 2.5]}}
    source = CHATML + "{{ strftime_now('%d') }}{{ note | tojson }}{{ eos_token }}"
    here, there = ChatTemplate(source, eos_token="</s>"), ConfinedTemplate(source, "x", eos_token="</s>")
    for messages in (TALK, [user()], [user(), bot()]):
        assert there.render(messages, None, True, **options) == here.render(messages, None, True, **options)
    marked = CHATML.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}")
    here, there = ChatTemplate(marked), ConfinedTemplate(marked, "x")
    assert there.render_with_spans(TALK) == here.render_with_spans(TALK)
    assert there.render_all([(TALK, None), ([user()], [{}])]) == here.render_all([(TALK, None), ([user()], [{}])])
    for source in (
        "{{ raise_exception('no') }}",
        "{{ messages[9].role }}",
        "{% if %}",
        "{{ ''.__class__.x }}",
    ):
        errors = []
        for kind in (lambda text: ChatTemplate(text), lambda text: ConfinedTemplate(text, "x")):
            with pytest.raises(UserError) as caught:
                kind(source).render([user()])
            errors.append(str(caught.value))
        assert errors[0].replace("chat template, line", "x: line") == errors[1]


def test_our_own_templates_need_no_process() -> None:
    for path in SHIPPED.glob("*.jinja"):
        assert isinstance(open_template(path.read_text(), "x"), ChatTemplate)
    assert isinstance(open_template(path.read_text() + " ", "x"), ConfinedTemplate)


def test_a_process_that_was_ended_is_started_again() -> None:
    template = ConfinedTemplate(CHATML, "x")
    assert confined._here is not None
    before = confined._here._process
    os.kill(before.pid, signal.SIGKILL)
    assert template.render([user("a")]) == "<|im_start|>user\na<|im_end|>\n"
    assert confined._here is not None and confined._here._process.pid != before.pid


def test_a_fork_has_a_process_of_its_own() -> None:
    template = ConfinedTemplate(CHATML, "x")
    ours = confined._here and confined._here._process.pid
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        template.render([user("a")])
        assert confined._here
        os.write(writer, str(confined._here._process.pid).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 20)) != ours
    assert template.render([user("a")])
    assert confined._here and confined._here._process.pid == ours
    for end in (reader, writer):
        os.close(end)


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads /proc")
def test_it_knows_no_secret_and_can_neither_write_nor_start_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    if confined._here:
        confined._here.end()
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    ConfinedTemplate(CHATML, "x")
    assert confined._here is not None
    place = Path(f"/proc/{confined._here._process.pid}")
    names = {entry.split(b"=")[0] for entry in (place / "environ").read_bytes().split(b"\0")}
    assert names <= {b"", b"PYTHONPATH", *(name.encode() for name in confined.KEPT_VARIABLES)}
    for kind, most in confined.LIMITS.items():
        assert resource.prlimit(confined._here._process.pid, kind) == (most, most)


def test_the_process_ends_with_ours() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        ConfinedTemplate(CHATML, "x")
        assert confined._here
        os.write(writer, str(confined._here._process.pid).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = int(os.read(reader, 20))
    os.close(reader), os.close(writer)
    state = Path(f"/proc/{theirs}/stat")
    while state.exists() and state.read_text().rsplit(")")[1].split()[0] != "Z":
        time.sleep(0.05)


TURNS = (
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
    return TURNS.replace("{{ m.content }}", f"{{% if m.role == 'assistant' %}}{text}{{% endif %}}{{{{ m.content }}}}")


def behind(condition: str, text: str = NOTE) -> str:
    """ChatML, with this put behind turns."""
    return TURNS.replace(END, f"{END}{{% if {condition} %}}{text}{{% endif %}}")


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
        TURNS.replace("{% for c", TIME + "{% for c").replace(
            "{% endfor %}<|im_end|>", "{% endfor %}" + TIME + "<|im_end|>"),
        CALLS, None, ['c<tool_call>{"name": "add", "arguments": {"a": 1, "ü": "é"}}</tool_call>' + END, "a" + END]),
    "reminder in long answers": (
        TURNS.replace("{{ m.content }}", "{{ m.content }}{{ 'Reminder' if m.content | length > 20 }}"),
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
    template = ChatTemplate(TURNS, eos_token="</s>")
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
