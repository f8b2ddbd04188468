import random
from datetime import datetime

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from nemotron_shared.data.chat import ChatFields, ChatTemplate, to_messages, tokenize_with_mask, validate_messages
from nemotron_shared.errors import UserError

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
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "ü": "é"}}}
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


def test_text_and_mask_are_those_of_transformers(tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    ours = ChatTemplate(MARKED, eos_token="<|im_end|>")
    masked = 0
    for seed in range(300):
        messages, tools = conversation(seed), TOOLS if seed % 3 == 0 else None
        assert validate_messages(messages) is None
        text, spans = ours.render_with_spans(messages, tools)
        options = {"chat_template": MARKED, "tools": tools}
        assert text == theirs.apply_chat_template(messages, tokenize=False, **options)
        options |= {"return_dict": True, "return_assistant_tokens_mask": True}
        expected = theirs.apply_chat_template(messages, **options)
        ids, mask = tokenize_with_mask(tokenizer, text, spans)
        assert ids == expected["input_ids"]
        assert mask == expected["assistant_masks"]
        masked += sum(mask)
    assert masked > 3000


def test_the_counted_text_is_what_the_assistant_wrote(tokenizer):
    messages = [{"role": "user", "content": "Hi 😀"}, {"role": "assistant", "content": "日本 😀"}]
    text, spans = ChatTemplate(MARKED).render_with_spans(messages)
    assert [text[start:end] for start, end in spans] == ["日本 😀<|im_end|>"]
    ids, mask = tokenize_with_mask(tokenizer, text, spans)
    counted = [token for token, one in zip(ids, mask, strict=True) if one]
    assert counted == tokenizer.encode("日本 😀<|im_end|>").ids


def test_every_byte_of_a_last_character_counts(tokenizer):
    text = "user: Hi 😀 bot: 日本 🇩🇪"
    start = text.index("日")
    ids, mask = tokenize_with_mask(tokenizer, text, [(start, len(text))])
    assert mask == [0] * (len(ids) - sum(mask)) + [1] * sum(mask)
    assert sum(mask) >= len(tokenizer.encode(text[start:]).ids) - 1


def test_offsets_without_leading_spaces_give_the_same_mask(tokenizer):
    trimmed = Tokenizer.from_str(tokenizer.to_str())
    trimmed.post_processor = processors.ByteLevel(trim_offsets=True)
    template = ChatTemplate(MARKED)
    differing = 0
    for seed in range(200):
        text, spans = template.render_with_spans(conversation(seed))
        assert tokenize_with_mask(trimmed, text, spans) == tokenize_with_mask(tokenizer, text, spans)
        differing += trimmed.encode(text).offsets != tokenizer.encode(text).offsets
    assert differing > 100
    assert trimmed.post_processor is not None, "the caller's tokenizer was changed"


def test_without_marks_the_spans_come_from_prefixes():
    marked, plain = ChatTemplate(MARKED), ChatTemplate(PLAIN)
    assert (marked.has_generation_marks, plain.has_generation_marks) == (True, False)
    for seed in range(100):
        messages = conversation(seed)
        assert plain.render_with_spans(messages, TOOLS) == marked.render_with_spans(messages, TOOLS)


QUESTION = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": " 4 "}]


def test_a_template_without_turn_marks_works_too():
    source = "{% for m in messages %}{{ ('Q: ' if m.role == 'user' else ' A:') + m.content }}{% endfor %}"
    text, spans = ChatTemplate(source).render_with_spans(QUESTION)
    assert (text, [text[start:end] for start, end in spans]) == ("Q: 2+2? A: 4 ", [" A: 4"])


FORGETFUL = """{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}forgotten
{% else %}{{ m.content }}{% endif %}{% endfor %}"""
UNDERIVABLE = {
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


def test_marks_inside_macros_are_located():
    source = """{% macro say(m) %}[{% generation %}{{ m.content | trim }}{% endgeneration %}]{% endmacro %}
{%- for m in messages %}{{ say(m) if m.role == 'assistant' else m.content }}{% endfor %}"""
    text, spans = ChatTemplate(source).render_with_spans(QUESTION)
    assert (text, spans) == ("2+2?[4]", [(5, 6)])


def test_a_mask_of_ones_only_is_an_error(tokenizer):
    with pytest.raises(UserError, match="counts every token"):
        tokenize_with_mask(tokenizer, "hello", [(0, 5)])
    assert tokenize_with_mask(tokenizer, "", []) == ([], [])


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


def user(content: object = "q", **more: object) -> dict:
    return {"role": "user", "content": content, **more}


def bot(content: object = "a", **more: object) -> dict:
    return {"role": "assistant", "content": content, **more}


def tool(**more: object) -> dict:
    return {"role": "tool", "content": "3", **more}


def calling(*calls: object) -> dict:
    return bot(None, tool_calls=list(calls))


VALID = [
    [user(), bot()],
    [bot("greeting first")],
    [{"role": "system", "content": ""}, user(""), bot("", reasoning_content="r")],
    [user(), calling(CALL), tool(tool_call_id="c1"), bot()],
    [user(), calling({"function": {"name": "f", "arguments": '{"a": 1}'}}), tool(), bot()],
    [user(name=None, tool_calls=None), bot(tool_calls=[])],
]
INVALID = [
    (None, "messages is not a list of objects"),
    (["hi"], "messages is not a list of objects"),
    ([], "no messages"),
    ([user()], "no assistant turn"),
    ([{"role": "robot", "content": "x"}, bot()], "unknown role"),
    ([{"content": "x"}, bot()], "unknown role"),
    ([user([{"type": "text", "text": "x"}]), bot()], "content is not a string"),
    ([user(None), bot()], "content is not a string"),
    ([user(), bot(None)], "content is not a string"),
    ([user(), bot("x", reasoning_content=["r"])], "reasoning is not a string"),
    ([user(), bot(" \n")], "empty assistant turn"),
    ([user(tool_calls=[CALL]), bot()], "tool calls outside an assistant turn"),
    ([user(), calling("f")], "malformed tool call"),
    ([user(), calling({"function": {"arguments": {}}})], "malformed tool call"),
    ([user(), calling({"function": {"name": "f", "arguments": "{"}})], "malformed tool call"),
    ([user(), calling({"function": {"name": "f", "arguments": "[1]"}})], "malformed tool call"),
    ([user(), bot(tool_calls={"function": "f"})], "malformed tool call"),
    ([user(), tool(), bot()], "tool message without a tool call"),
    ([user(), calling(CALL), tool(), bot()], "tool message without tool_call_id"),
    ([user(), calling(CALL), tool(tool_call_id="c2"), bot()], "tool_call_id of no tool call"),
]


@pytest.mark.parametrize("messages", VALID)
def test_a_conversation_to_train_on_is_accepted(messages):
    assert validate_messages(messages) is None


@pytest.mark.parametrize(("messages", "reason"), INVALID)
def test_a_conversation_that_cannot_be_trained_on_has_a_reason(messages, reason):
    assert validate_messages(messages) == reason


def test_rows_of_three_shapes_become_messages():
    wanted = [user("2+2?"), bot("4")]
    assert to_messages({"messages": wanted}, ChatFields()) == wanted
    assert to_messages({"chat": wanted}, ChatFields(messages_field="chat")) == wanted
    pair = ChatFields("prompt_response", prompt_field="question", response_field="answer")
    assert to_messages({"question": "2+2?", "answer": "4"}, pair) == wanted
    shared = {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
    assert to_messages(shared, ChatFields("sharegpt")) == wanted


def test_what_is_no_conversation_reaches_validation():
    assert validate_messages(to_messages({"messages": "hi"}, ChatFields())) == "messages is not a list of objects"
    odd = to_messages({"conversations": [{"from": ["bing"], "value": "x"}]}, ChatFields("sharegpt"))
    assert validate_messages(odd) == "unknown role"


def test_tool_arguments_become_objects():
    row = {"messages": [calling({"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}})]}
    assert to_messages(row, ChatFields())[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert row["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}', "the row was changed"


def test_a_missing_field_is_named():
    with pytest.raises(UserError) as caught:
        to_messages({"message": []}, ChatFields())
    assert "did you mean 'message'" in str(caught.value)
