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
from nemotron_shared.errors import UserError

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
        assert errors[0] == errors[1]


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
