"""A chat template that would take all time or memory is one error."""

import pytest
from chat_support import CALL, bot, calling, tool, user

from nemotron_data.chat.template import ChatTemplate
from nemotron_shared.errors import UserError

GROWS = "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"
GREEDY = {
    "a long text": "{{ 'a' * 10000000000 }}",
    "a long list": "{{ [0] * 10000000000 }}",
    "a width in a format": "{{ '%99999999999d' % 5 }}",
    "a width beside a format": "{{ '%*d' % (99999999999, 5) }}",
    "a width in a new format": "{{ '{:9999999999}'.format(4) }}",
    "a width beside a new format": "{{ '{:{}}'.format(4, 9999999999) }}",
    "a width in a filter": "{{ '%99999999999d' | format(5) }}",
    "rjust": "{{ 'a'.rjust(9999999999) }}",
    "center": "{{ 'a' | center(9999999999) }}",
    "indent": "{{ 'a\nb' | indent(999999999) }}",
    "tojson": "{{ messages | tojson(indent=99999999) }}",
    "batch": "{{ [1] | batch(9999999999, 1) | list }}",
    "words": "{{ lipsum(999999999) }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
    "join": "{{ ([('a' * 1000000)] * 1000000) | join }}",
    "a large number": "{{ 9 ** 99999 ** 9 }}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over texts": "{% set t = 'a' * 99999 %}{% for i in t %}{% for j in t %}{% endfor %}{% endfor %}",
    "a macro twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "twice as long": GROWS.replace("STEP", "ns.x ~ ns.x"),
    "squares": GROWS.replace("'aaaa'", "7").replace("STEP", "ns.x * ns.x"),
    "twice as long in macros": "{% macro f(x, n) %}{% if n %}"
    "{{ f(x ~ x, n - 1) }}{% endif %}{% endmacro %}{{ f('a', 80) }}",
    "much text": "{% for i in range(90000) %}{{ 'a' * 100000 }}{% endfor %}",
    "much text in a macro": "{% macro f() %}{% for i in range(90000) %}{{ 'a' * 100000 }}"
    "{% endfor %}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_a_greedy_template_is_one_error(source: str) -> None:
    with pytest.raises(UserError, match="the chat template takes too much: "):
        ChatTemplate(source).render([user(), bot()])


def test_what_templates_do_is_allowed() -> None:
    source = (
        "{{ '-' * 80 }}{{ '%5.2f' % 3.1 }}{{ 'a' | center(20) }}{{ 'x'.ljust(3) }}{{ '{:>3}'.format(4) }}{{ 2 ** 10 }}"
        "{{ 7 % 3 }}{{ 'a-b'.replace('-', '+') }}{{ ['a', 'b'] | join(', ') }}{{ [1, 2] | tojson(indent=4) }}"
    )
    assert (
        ChatTemplate(source)
        .render([user()])
        .startswith("-" * 80 + " 3.10         a          x    410241a+ba, b[\n    1")
    )
    long = [message for _ in range(300) for message in (user("é" * 1000), calling(CALL), tool(), bot())]
    every = "{% for m in messages %}{% for other in messages %}{% endfor %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert len(ChatTemplate(every).render(long)) > 300_000
