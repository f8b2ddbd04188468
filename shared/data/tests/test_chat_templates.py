"""The templates that are shipped, and how one is chosen."""

import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from chat_support import CALL, bot, calling, tool, user
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.rows import validate_messages
from nemotron_data.chat.shown import CALLS, EndToken, Hidden, calls_untold, learnt_end, told, with_thought
from nemotron_data.chat.template import ChatTemplate, find_template, template_file
from nemotron_data.encoders.masks import mask_by_offsets
from nemotron_data.tokenizers.folder import TokenizerFolder, copy_tokenizer
from nemotron_shared.system.errors import UserError

SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]

MARKED = """
{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
            {%- if message.reasoning_content %}
                {{- '<think>' + message.thinking + message.reasoning_content }}
            {%- endif %}
            {{- message.content | default('(nothing)') }}
            {%- for call in message.tool_calls or [] %}
                {{- '<tool_call>' + call.function.name + (call.function.arguments | tojson(indent=1)) }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""
PLAIN = MARKED.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
WORDS = ["hello", "2+2", " is ", "\n", "  ", "\u00e9", "e\u0301", "日本", "😀", "🇩🇪", "<b>&", '"', "\t", "\u2028"]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["".join(conversation_text(seed)) for seed in range(50)], trainer)
    return made


def conversation_text(seed: int) -> list[str]:
    choose = random.Random(seed)
    return [choose.choice(WORDS) for _ in range(choose.randrange(12))]


def conversation(seed: int) -> list[dict]:
    """Turns of random text, some with reasoning and tool calls, as validate_messages accepts them."""
    choose = random.Random(seed)
    messages: list[dict] = [{"role": "system", "content": "Be brief."}] if choose.random() < 0.3 else []
    for turn in range(choose.randrange(1, 4)):
        text = "".join(conversation_text(choose.randrange(10**6)))
        messages.append({"role": "user", "content": text})
        if choose.random() < 0.3:
            messages.append({"role": "assistant", "content": None, "tool_calls": [CALL]})
            messages.append({"role": "tool", "content": text, "tool_call_id": "c1"})
        answer = {"role": "assistant", "content": f"{text[::-1]} {turn}"}
        if choose.random() < 0.5:
            answer[choose.choice(["reasoning_content", "reasoning"])] = "".join(conversation_text(seed + 1))
        messages.append(answer)
    return messages


@pytest.mark.parametrize("source", [MARKED, find_template("nano3")], ids=["marked", "nano3"])
def test_text_and_mask_are_those_of_transformers(tokenizer, source):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    ours = ChatTemplate(source, eos_token="<|im_end|>")
    masked = 0
    for seed in range(300):
        messages, tools = conversation(seed), TOOLS if seed % 3 == 0 else None
        assert validate_messages(messages) is None
        text, spans = ours.render_with_spans(messages, tools)
        options = {"chat_template": source, "tools": tools}
        seen = [_with_reasoning_content(message) for message in messages] if source != MARKED else messages
        assert text == theirs.apply_chat_template(seen, tokenize=False, **options)
        options |= {"return_dict": True, "return_assistant_tokens_mask": True}
        expected = theirs.apply_chat_template(seen, **options)
        ids, mask = mask_by_offsets(tokenizer, text, spans)
        assert ids == expected["input_ids"]
        assert mask == expected["assistant_masks"]
        masked += sum(mask)
    assert masked > 3000


def _with_reasoning_content(message: dict) -> dict:
    """Under the one name that the template knows."""
    return {"reasoning_content" if key == "reasoning" else key: value for key, value in message.items()}


def test_the_counted_text_is_what_the_assistant_wrote(tokenizer):
    messages = [{"role": "user", "content": "Hi 😀"}, {"role": "assistant", "content": "日本 😀"}]
    text, spans = ChatTemplate(MARKED).render_with_spans(messages)
    assert [text[start:end] for start, end in spans] == ["日本 😀<|im_end|>"]
    ids, mask = mask_by_offsets(tokenizer, text, spans)
    counted = [token for token, one in zip(ids, mask, strict=True) if one]
    assert counted == tokenizer.encode("日本 😀<|im_end|>").ids


def test_a_span_reaches_to_the_first_token_of_its_last_character_as_in_transformers(tokenizer):
    text = "user: Hi 😀 bot: 日本 🇩🇪"
    start = text.index("日")
    ids, mask = mask_by_offsets(tokenizer, text, [(start, len(text))])
    first = mask.index(1)
    assert mask == [0] * first + [1] * sum(mask) + [0] * (len(ids) - first - sum(mask)), "one run"
    offsets = tokenizer.encode(text).offsets
    assert offsets[first][0] <= start < offsets[first][1], "from the token with the first character"
    assert offsets[first + sum(mask) - 1][1] == len(text), "to a token with the last one"


def test_offsets_without_leading_spaces_give_the_same_mask(tokenizer):
    trimmed = Tokenizer.from_str(tokenizer.to_str())
    trimmed.post_processor = processors.ByteLevel(trim_offsets=True)
    template = ChatTemplate(MARKED)
    differing = 0
    for seed in range(200):
        text, spans = template.render_with_spans(conversation(seed))
        assert mask_by_offsets(trimmed, text, spans) == mask_by_offsets(tokenizer, text, spans)
        differing += trimmed.encode(text).offsets != tokenizer.encode(text).offsets
    assert differing > 100
    assert trimmed.post_processor is not None, "the caller's tokenizer was changed"


def test_without_marks_an_answer_ends_with_its_turn():
    marked, plain = ChatTemplate(MARKED), ChatTemplate(PLAIN)
    assert (marked.has_generation_marks, plain.has_generation_marks) == (True, False)
    for seed in range(100):
        messages = conversation(seed)
        text, spans = marked.render_with_spans(messages, TOOLS)
        assert plain.render_with_spans(messages, TOOLS) == (text, [(start, end + len("\n")) for start, end in spans])


QUESTION = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": " 4 "}]


def test_a_template_without_turn_marks_works_too():
    source = "{% for m in messages %}{{ ('Q: ' if m.role == 'user' else ' A:') + m.content }}{% endfor %}"
    text, spans = ChatTemplate(source).render_with_spans(QUESTION)
    assert (text, [text[start:end] for start, end in spans]) == ("Q: 2+2? A: 4 ", [" 4"])


FORGETFUL = """{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}forgotten
{% else %}{{ m.content }}{% endif %}{% endfor %}"""
EACH = "{% for m in messages %}"
UNDERIVABLE = {
    "answers in the questions' turns": (
        EACH
        + "{% if m.role == 'user' %}{{ m.content + '>' + ('' if loop.last else loop.nextitem.content) }}{% endif %}"
        "{% endfor %}",
        QUESTION,
    ),
    "answers shown again": (
        EACH + "<{{ m.role }}>{{ m.content + ('' if loop.first else loop.previtem.content) }}{% endfor %}",
        QUESTION,
    ),
    "the next question's header in an answer": (
        "{{ '<user>' }}" + EACH + "{{ m.content }}{{ '<bot>' if m.role == 'user' else '</s><user>' }}{% endfor %}",
        QUESTION,
    ),
    "a header that is in the turn before": (
        EACH + "{{ '<user>' if loop.first }}{{ m.content }}{{ '<bot>' if m.role == 'user' else '<user>' }}{% endfor %}",
        QUESTION,
    ),
    "answers that do not begin as prompts end": (
        EACH + "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}",
        QUESTION,
    ),
    "an end of nobody": (
        EACH + "<{{ m.role }}>{{ m.content }}{% endfor %}{{ '<assistant>' if add_generation_prompt else 'All.' }}",
        QUESTION,
    ),
    "pairs of messages": (
        "{% for p in messages | batch(2, {}) %}{{ p[0].content + (p[1].content or '') }}{% endfor %}",
        QUESTION,
    ),
    "a tool's answer in the turn of its call": (
        EACH + "{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ messages[2].content }}"
        "{% endif %}{% endif %}{% endfor %}",
        [QUESTION[0], {**QUESTION[1], "tool_calls": [CALL]}, {"role": "tool", "content": "3"}, QUESTION[1]],
    ),
    "a late answer left out": (
        EACH + "<{{ m.role }}>{{ m.content if loop.index < 6 else '...' }}{% endfor %}",
        QUESTION * 3,
    ),
    "an answer in the title": (
        "{{ messages[5].content if messages | length > 4 }}" + EACH + "<{{ m.role }}>{{ m.content }}{% endfor %}",
        QUESTION * 3,
    ),
    "new messages": (
        "{% set ns = namespace(all=[]) %}"
        + EACH
        + "{% set ns.all = ns.all + [{'t': m.role + m.content}] %}{% endfor %}"
        "{% for m in ns.all %}{{ m.t }}{% endfor %}",
        QUESTION,
    ),
    "earlier turns are rewritten": (FORGETFUL, QUESTION + QUESTION),
    "the prompt is no prefix": ("{{ messages[-1].content }}{% if add_generation_prompt %}!{% endif %}", QUESTION),
    "everything is generated": ("{% generation %}{{ messages[1].content }}{% endgeneration %}", QUESTION),
    "nothing is generated": ("{{ messages[0].content }}{% generation %}{% endgeneration %}", QUESTION),
    "the assistant is not shown": ("{{ messages[0].content }}", QUESTION),
    "no assistant turn": (PLAIN, QUESTION[:1]),
    "blocks in blocks": ("x{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}", QUESTION),
    "marks change the text": ("{% set t %}{% generation %}a{% endgeneration %}{% endset %}{{ t | length }}", QUESTION),
}


@pytest.mark.parametrize(("source", "messages"), UNDERIVABLE.values(), ids=UNDERIVABLE)
def test_a_mask_that_cannot_be_known_is_an_error(source, messages):
    with pytest.raises(UserError) as caught:
        ChatTemplate(source).render_with_spans(messages)
    assert "{% generation %}" in str(caught.value.remedy)


SAY = "{% generation %}{{ m.content }}{% endgeneration %}"
STRAIGHT = {
    "loop": "{% for m in messages %}<{{ m.role }}>" + SAY + "{% endfor %}",
    "condition": "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
    + SAY
    + "{% endif %}{% endfor %}",
    "with": "{% for m in messages %}[{% with n = m %}" + SAY + "{% endwith %}]{% endfor %}",
    "inner loop": "{% for m in messages %}{% for i in [1, 2] %}{{ i }}" + SAY + "{% endfor %}{% endfor %}",
    "macro inside": "{% macro up(x) %}{{ x | upper }}{% endmacro %}{% for m in messages %}-"
    + SAY.replace("m.content", "up(m.content)")
    + "{% endfor %}",
    "set inside": "{% for m in messages %}-" + SAY.replace("{{", "{% set x %}a{% endset %}{{ x +") + "{% endfor %}",
    "two in a row": "-{% for m in messages %}" + SAY + SAY + "{% endfor %}",
    "empty": "-{% for m in messages %}{% generation %}{% endgeneration %}" + SAY + "{% endfor %}",
}
CAPTURED = {
    "set": "{% for m in messages %}-{% set x %}" + SAY + "{% endset %}{{ x }}{% endfor %}",
    "filter": "{% for m in messages %}-{% filter replace('-', '+') %}" + SAY + "{% endfilter %}{% endfor %}",
    "macro": "{% macro say(m) %}" + SAY + "{% endmacro %}{% for m in messages %}-{{ say(m) }}{% endfor %}",
    "call": "{% macro wrap() %}({{ caller() }}){% endmacro %}{% for m in messages %}{% call wrap() %}" + SAY
    + "{% endcall %}{% endfor %}",
    "recursive loop": "{% for m in messages recursive %}-" + SAY
    + "{% if loop.depth == 1 %}{{ loop([m]) }}{% endif %}{% endfor %}",
    "one of two": "{% for m in messages %}-{% set x %}" + SAY + "{% endset %}{{ x }}" + SAY + "{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "renderings"),
    [*((source, 1) for source in STRAIGHT.values()), *((source, 2) for source in CAPTURED.values())],
    ids=[*STRAIGHT, *CAPTURED],
)
def test_one_rendering_locates_what_goes_straight_into_the_text(monkeypatch, source, renderings):
    messages = [{"role": "user", "content": " 2+2? "}, {"role": "assistant", "content": "日本 4 "}]
    template = ChatTemplate(source)
    plain = template.render(messages)
    by_marks = [span for span in template._marked_spans(plain, messages, None, {}) if span[0] < span[1]]
    calls = []
    render = ChatTemplate._pieces
    monkeypatch.setattr(ChatTemplate, "_pieces", lambda *given: calls.append(1) or render(*given))
    assert template.render_with_spans(messages) == (plain, by_marks)
    assert len(calls) == renderings


def test_text_that_looks_like_our_marks_is_just_text():
    text = "\ufdd0generation\ufdd1x\ufdd1generation\ufdd0"
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    rendered, spans = ChatTemplate(STRAIGHT["condition"]).render_with_spans(messages)
    assert rendered == text + text
    assert spans == [(len(text), 2 * len(text))]


LOOK_UPS = ["{}.items() | list", "{}['items'] is defined", "{}.keys is defined", "{}.nope is defined", "{}.role",
    "{}['nope'] is defined", "{}.update is defined", "{}.copy() == {}", "{}.__class__ is defined", "{}.items.nope",
    "{}.role.upper()", "'%s'.format is defined", "'{0.__class__}'.format({})", "{}.role.nope is defined"]  # fmt: skip


@pytest.mark.parametrize("expression", LOOK_UPS)
def test_fast_look_ups_of_keys_answer_as_jinja_does(expression):
    for value in ({"role": "user", "items": [1]}, {"keys": 0, "__class__": 2}):
        source = "{{ " + expression.replace("{}", "m") + " }}"
        ours = ChatTemplate("{% set m = messages[0] %}" + source)
        theirs = ImmutableSandboxedEnvironment().from_string("{% set m = messages[0] %}" + source)
        assert _outcome(ours.render, [value]) == _outcome(theirs.render, messages=[value])


def _outcome(render, *given, **named) -> str:
    try:
        return render(*given, **named)
    except (UserError, TemplateError):
        return "refused"


def test_marks_inside_macros_are_located():
    source = """{% macro say(m) %}[{% generation %}{{ m.content | trim }}{% endgeneration %}]{% endmacro %}
{%- for m in messages %}{{ say(m) if m.role == 'assistant' else m.content }}{% endfor %}"""
    text, spans = ChatTemplate(source).render_with_spans(QUESTION)
    assert (text, spans) == ("2+2?[4]", [(5, 6)])


def test_templates_get_special_tokens_options_loop_controls_and_a_fixed_clock():
    source = "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
    source += "{% endfor %}{{ '' if think is defined and think else '-' }}{{ strftime_now('%Y') }}{{ pad_token }}"
    template = ChatTemplate(source, bos_token="<s>", eos_token=None)
    clock = datetime(2031, 5, 1).strftime
    assert template.render(QUESTION, strftime_now=clock) == "<s>2+2?-2031"
    assert template.render(QUESTION, think=True, strftime_now=clock) == "<s>2+2?2031"
    assert int(template.render(QUESTION)[-4:]) >= 2025


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "chat template, line 1"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{{ messages[0].missing.field }}", "refuses"),
        ("{{ messages[0].content | tojson(indent='a', sort_keys=1, nonsense=2) }}", "refuses"),
    ],
)
def test_a_template_that_fails_is_a_user_error(source, message):
    with pytest.raises(UserError, match=message):
        ChatTemplate(source).render(QUESTION)


@pytest.mark.parametrize("tools", ['[{"type": "function"}]', {"type": "function"}, ["add"]])
def test_tools_that_a_template_would_misread_are_refused(tools):
    with pytest.raises(UserError, match="tools is not a list"):
        ChatTemplate(MARKED).render(QUESTION, tools)


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


TURN = "{{ '<|' + m.role + '|>' + (m.content or '') + '<|end|>' }}"
LOOP = "{% for m in messages %}" + TURN + "{% endfor %}"
LESS = {
    "tools": LOOP,
    CALLS: LOOP,
    "tool results": "{% for m in messages %}{% if m.role != 'tool' %}" + TURN + "{% endif %}{% endfor %}",
    "system prompts": "{% for m in messages %}{% if m.role != 'system' %}" + TURN + "{% endif %}{% endfor %}",
    "reasoning": LOOP,
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": {"a": "user"}}}
SAYS: dict[str, list[dict[str, Any]]] = {
    CALLS: [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "tool results": [{"role": "tool", "tool_call_id": "c1", "content": "user"}],
    "system prompts": [{"role": "system", "content": "user"}],
    "reasoning": [{"role": "assistant", "content": "x", "reasoning_content": "user"}],
}
ASKED = {"role": "user", "content": "the user asks"}
NAMED_TOOLS = [{"type": "function", "function": {"name": "user"}}]


@pytest.mark.parametrize("kind", LESS)
def test_a_template_that_shows_less_is_told_from_one_that_shows_all(kind: str) -> None:
    messages, tools = [ASKED, *SAYS.get(kind, [])], NAMED_TOOLS if kind == "tools" else None
    assert Hidden(ChatTemplate(LESS[kind])).of(messages, tools) == (kind,)
    assert Hidden(ChatTemplate(find_template("nano3"))).of(messages, tools) == ()
    assert Hidden(ChatTemplate(LESS[kind])).of([ASKED], None) == ()


def test_arguments_alone_are_lost_too_and_thoughts_within_the_text() -> None:
    names = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
    assert Hidden(ChatTemplate(LOOP + names)).of([ASKED, *SAYS[CALLS]], None) == (CALLS,)
    bare = {**CALL, "function": {"name": "get", "arguments": {}}}
    assert Hidden(ChatTemplate(LOOP + names)).of([ASKED, {"role": "assistant", "tool_calls": [bare]}], None) == ()
    strips = LOOP.replace("(m.content or '')", "(m.content or '').split('</think>')[-1]")
    within = {"role": "assistant", "content": "<think>\nwhy</think>4"}
    assert Hidden(ChatTemplate(strips)).of([ASKED, within], None) == ("reasoning",)
    assert Hidden(ChatTemplate(LOOP)).of([ASKED, within], None) == ()
    assert with_thought(within, "Z")["content"] == "<think>\nZ\n</think>4"
    assert Hidden(ChatTemplate(strips)).of([ASKED, within], None, prompt=True) == ()


def test_names_of_speakers_are_lost_where_a_template_shows_none() -> None:
    named = [{**ASKED, "name": "ada"}, {"role": "assistant", "content": "4"}]
    assert Hidden(ChatTemplate(LOOP)).of(named, None) == ("names of speakers",)
    assert Hidden(ChatTemplate(LOOP)).of(named[:1], None, prompt=True) == ("names of speakers",)
    shows = LOOP.replace("(m.content or '')", "(m.name or '') + (m.content or '')")
    assert Hidden(ChatTemplate(shows)).of(named, None) == ()


def test_a_template_that_wants_more_than_a_skeleton_is_not_judged() -> None:
    refuses = ChatTemplate("{{ raise_exception('no') if messages[-1].role == 'tool' }}" + LOOP)
    assert Hidden(refuses).of([ASKED, *SAYS[CALLS], *SAYS["tool results"]], NAMED_TOOLS) == ()


def test_the_sentence() -> None:
    assert told(("tools", "tool results")) == "the chat template shows no tools, no tool results"


def test_a_call_is_untold_unless_a_system_prompt_names_it() -> None:
    assert calls_untold([ASKED, *SAYS[CALLS]], None)
    assert not calls_untold([ASKED, *SAYS[CALLS]], NAMED_TOOLS)
    assert not calls_untold([{"role": "system", "content": "You may get()."}, *SAYS[CALLS]], None)
    assert not calls_untold([ASKED], None)


TURNS = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + END }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


def folder(path: Path, *added: AddedToken, **settings: object) -> TokenizerFolder:
    """A tokenizer of letters with some tokens more."""
    path.mkdir(exist_ok=True)
    letters = {chr(code): code - 32 for code in range(32, 127)} | {"Ċ": 95, "Ġ": 96}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return TokenizerFolder(path)


def end_of(source: str, tokenizer: TokenizerFolder) -> EndToken | None:
    return learnt_end(source, "t.jinja", tokenizer)


@pytest.mark.parametrize("special", [True, False])
def test_the_mark_that_closes_an_answer_ends_it(tmp_path: Path, special: bool) -> None:
    mark = AddedToken("<|im_end|>", special=special, normalized=False)
    tokenizer = folder(tmp_path, AddedToken("</s>", special=True), mark, eos_token="</s>")
    assert end_of(TURNS.replace("END", "'<|im_end|>\\n'"), tokenizer) == EndToken(98, "<|im_end|>")
    assert end_of(TURNS.replace("END", "eos_token"), tokenizer) == EndToken(97, "</s>")
    assert end_of(find_template("plain"), tokenizer) == EndToken(97, "</s>")


def test_a_mark_that_would_be_spelled_is_named_with_a_remedy(tmp_path: Path) -> None:
    tokenizer = folder(tmp_path, AddedToken("</s>", special=True), eos_token="</s>")
    with pytest.raises(UserError, match=r"t\.jinja: answers end with '<\|im_end\|>', which is not a token") as caught:
        end_of(find_template("nano3"), tokenizer)
    assert "'</s>'" in str(caught.value.remedy)
    assert "plain" in str(caught.value.remedy)


def test_without_any_token_for_an_end_nothing_can_close_an_answer(tmp_path: Path) -> None:
    tokenizer = folder(tmp_path)
    with pytest.raises(UserError, match="names none") as caught:
        end_of(find_template("plain"), tokenizer)
    assert "eos_token in tokenizer_config.json" in str(caught.value.remedy)


def test_a_template_that_closes_nothing_teaches_no_end(tmp_path: Path) -> None:
    marked = (
        "{%- for m in messages %}{{ m.role + ': ' }}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}"
        "{%- endfor %}"
    )
    assert end_of(marked, folder(tmp_path, AddedToken("</s>", special=True), eos_token="</s>")) is None


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert folder(tmp_path, chat_template=several).chat_template() == "D"
    with pytest.raises(UserError, match=r"has the chat templates rag, tool_use, and none named default"):
        folder(tmp_path, chat_template=[{"name": "rag", "template": "R"}, several[0]]).own_template()
    with pytest.raises(UserError, match="neither a text nor a list"):
        folder(tmp_path, chat_template=5).own_template()
    assert folder(tmp_path).own_template() is None


def test_templates_beside_the_default_are_told(tmp_path: Path) -> None:
    """In both places that transformers reads them from; a chat_template.jinja hides those of tokenizer_config.json."""
    several = [{"name": name, "template": name} for name in ("tool_use", "default", "rag")]
    listed = folder(tmp_path / "listed", chat_template=several)
    tools = "default is used with tools, too, for which transformers and vLLM take tool_use"
    assert listed.templates_left_out() == f"its chat template rag, tool_use is left out: {tools}"
    listed.give_template("D")
    assert listed.templates_left_out() is None
    (listed.path / "additional_chat_templates").mkdir()
    (listed.path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert listed.templates_left_out() == "its chat template rag is left out: default is used"
    assert folder(tmp_path / "one", chat_template="D").templates_left_out() is None


def test_a_template_that_is_given_goes_wherever_the_tokenizer_goes(tmp_path: Path) -> None:
    tokenizer = folder(tmp_path / "data", chat_template="its own")
    tokenizer.give_template("trained with\n")
    copy_tokenizer(tokenizer.path, tmp_path / "model")
    assert TokenizerFolder(tmp_path / "model").chat_template() == "trained with\n"


def test_plain_turns_show_all_that_a_conversation_says() -> None:
    template = open_template(find_template("plain"), "plain", eos_token="</s>")
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " 2+2? "},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    text, spans = template.render_with_spans(messages, [{"type": "function", "function": {"name": "add"}}])
    assert text.startswith('System:\nBe kind.\n\nYou may call these tools:\n{"type": "function", ')
    assert [text[start:end] for start, end in spans] == [
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call></s>',
        "4</s>",
    ]
    asked = template.render(messages[1:2], None, True)
    assert asked == "User:\n2+2?\n\nAssistant:\n"
    assert template.render([*messages[1:2], messages[-1]]) == f"{asked}4</s>"
