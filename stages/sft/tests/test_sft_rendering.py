"""From rows to texts and their spans, and what is kept of tokens."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemotron_data.chat.guards import Rendered
from nemotron_data.chat.template import ChatTemplate, find_template
from nemotron_data.chat.thought import thinking_by_default, thinks
from nemotron_data.sources.reading import Row, json_row
from nemotron_data.split import Split
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_data.tokenizers.tiny import VOCAB_SIZE
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.start import load
from nemotron_shared.step.step import make
from nemotron_shared.system.errors import UserError
from stages.sft.accounts import template_as_learnt
from stages.sft.choices import data_choices
from stages.sft.data_prep import STEP, look
from stages.sft.encode import Conversation, Renderer, Rendering, Tokens
from stages.sft.schema import SFTConfig, SFTData

CONFIG = Path(__file__).parent.parent / "config"


def config(*overrides: str) -> SFTConfig:
    values = resolve(compose(CONFIG, "tiny", overrides).tree, lambda role, field: None)
    return SFTConfig.model_validate(values)


def settings(*overrides: str) -> SFTData:
    return config(*overrides).data_prep


def chat(question: str = "2+2?", answer: str = "4", **more: object) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def texts_of(renderer: Renderer, messages: list) -> list[Rendered]:
    return renderer.texts_of(Conversation("messages", messages))


def test_each_question_is_a_sequence_where_earlier_reasoning_would_be_lost() -> None:
    renderer = Renderer(settings(), ChatTemplate(find_template("nano3")))
    turn = [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1", "reasoning_content": "thought one"},
        {"role": "user", "content": "q2"},
        {"role": "user", "content": "q3"},
        {"role": "assistant", "content": "a3", "reasoning_content": "thought three"},
    ]
    texts = texts_of(renderer, turn)
    assert [[text[start:end] for start, end in spans] for text, spans, _ in texts] == [
        ["thought one\n</think>\na1<|im_end|>"],
        ["thought three\n</think>\na3<|im_end|>"],
    ]
    assert "thought one" not in texts[1][0]
    assert "a1" in texts[1][0]
    whole = texts_of(Renderer(settings("data_prep.split_turns=never"), renderer.template), turn)
    assert [len(spans) for _, spans, _ in whole] == [2]
    plain = [{**message, "reasoning_content": None} for message in turn]
    assert len(texts_of(renderer, plain)) == 1


def test_questions_are_told_apart_where_every_conversation_ends_with_a_token() -> None:
    source = """{% for m in messages %}{{ '<|' + m.role + '|>' }}
{%- if m.reasoning_content and loop.last %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""
    renderer = Renderer(settings(), ChatTemplate(source, eos_token="</s>"))
    turn = [*chat()["messages"], *chat("3+3?", "6")["messages"]]
    turn[1]["reasoning_content"] = "because"
    texts = texts_of(renderer, turn)
    assert [[text[start:end] for start, end in spans] for text, spans, _ in texts] == [
        ["<think>because</think>4<|end|></s>"],
        ["6<|end|></s>"],
    ]


LAST_THINKS = """{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{{ '<|' + m.role + '|>\n' }}
{%- if m.reasoning_content and loop.index0 > ns.last %}{{ '<think>\n' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content + '<|end|>' }}{% endfor %}"""


def thought_and_answer(thought: str | None, question: str = "2+2?") -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": "4", "reasoning_content": thought}]


def trained(renderer: Renderer, turns: list[dict]) -> list[str]:
    texts = texts_of(renderer, turns)
    return ["".join(text[start:end] for start, end in spans) for text, spans, _ in texts]


def test_questions_are_told_apart_where_the_template_prompts_unasked() -> None:
    prompt = "{% if messages[-1].role == 'user' %}{{ '<|assistant|>\n<think>\n' }}{% endif %}"
    renderer = Renderer(settings(), ChatTemplate(LAST_THINKS + prompt))
    assert trained(renderer, thought_and_answer("why") + thought_and_answer("so")) == [
        "<think>\nwhy</think>4<|end|>",
        "<think>\nso</think>4<|end|>",
    ]
    assert trained(renderer, thought_and_answer("why") + thought_and_answer(None)) == [
        "<think>\nwhy</think>4<|end|>",
        "4<|end|>",
    ]
    assert trained(renderer, thought_and_answer("why")) == ["<think>\nwhy</think>4<|end|>"]
    within = [{"role": "assistant", "content": "<think>\nwhy</think>4"}]
    shown = "(m.content if loop.index0 > ns.last else m.content.split('</think>')[-1]) + '<"
    forgets = LAST_THINKS.replace("m.content + '<", shown)
    asked = [{"role": "user", "content": "2+2?"}]
    apart = trained(Renderer(settings(), ChatTemplate(forgets + prompt)), [*asked, *within, *asked, *within])
    assert apart == ["<think>\nwhy</think>4<|end|>"] * 2
    greeted = [{"role": "assistant", "content": "hi"}, *thought_and_answer("why"), *thought_and_answer("so")]
    assert trained(renderer, greeted)[0] == "hi<|end|><think>\nwhy</think>4<|end|>"


@pytest.mark.parametrize("thought", ["4", "2+2", "end"])
def test_a_thought_is_lost_though_its_words_stand_elsewhere(thought: str) -> None:
    renderer = Renderer(
        settings(), ChatTemplate(LAST_THINKS + "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
    )
    assert trained(renderer, thought_and_answer(thought) + thought_and_answer(None)) == [
        f"<think>\n{thought}</think>4<|end|>",
        "4<|end|>",
    ]


EMPTY_THOUGHT = LAST_THINKS.replace(
    "{%- if m.reasoning_content and loop.index0 > ns.last %}",
    "{%- if loop.index0 > ns.last and (loop.last or m.reasoning_content) %}",
).replace("'<think>\n' + m.reasoning_content", "'<think>\n' + (m.reasoning_content or '')")


@pytest.mark.parametrize("how", ["auto", "never"])
def test_an_empty_thought_before_the_last_answer_is_learnt_for_each(how: str) -> None:
    renderer = Renderer(settings(f"data_prep.split_turns={how}"), ChatTemplate(EMPTY_THOUGHT))
    free, thinking = thought_and_answer(None), thought_and_answer("why")
    last, earlier = "<think>\n</think>4<|end|>", "4<|end|>"
    assert trained(renderer, free + free) == ([last, last] if how == "auto" else [earlier + last])
    assert renderer.formats_earlier_unlike_last(free + free)
    assert renderer.formats_earlier_unlike_last(free + thinking)
    unlearnt = [free[0], {**free[1], "weight": 0}]
    for turns in (free, unlearnt + free, thinking + free):
        assert not renderer.formats_earlier_unlike_last(turns)
    assert trained(renderer, unlearnt + free) == [last]
    for source in (LAST_THINKS, find_template("nano3"), find_template("plain")):
        assert not Renderer(settings(), ChatTemplate(source, eos_token="</s>")).formats_earlier_unlike_last(free + free)


@pytest.mark.parametrize(("how", "said"), [("auto", "each question becomes a"), ("never", "learnt in a form that no")])
def test_answers_in_two_forms_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, said: str
) -> None:
    source, file = tmp_path / "chats.jsonl", tmp_path / "given.jinja"
    source.write_text(json.dumps({"messages": [*chat()["messages"], *chat("3+3?", "6")["messages"]]}) + "\n")
    file.write_text(EMPTY_THOUGHT.replace("<|end|>", "<|im_end|>"))
    words = [f"run.home={tmp_path / 'home'}", f"data_prep.source={source}", "data_prep.workers=1"]
    words += ["data_prep.split={train: 1.0, valid: 0.0, test: 0.0}", f"data_prep.split_turns={how}"]
    words.append(f"data_prep.chat_template={file}")
    made = make(load(STEP, Arguments("tiny", tuple(words), dry_run=False, json=False)))[0]
    assert f"1 rows whose earlier answers the chat template formats unlike the last one: {said}" in (
        capsys.readouterr().err
    )
    assert made.manifest.metadata["splits"]["train"]["sequences"] == (2 if how == "auto" else 1)


def test_a_template_without_reasoning_splits_nothing_and_is_counted() -> None:
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    renderer = Renderer(settings(), ChatTemplate(source))
    turns = thought_and_answer("why") + thought_and_answer("so")
    assert trained(renderer, turns) == ["4<|end|>4<|end|>"]
    assert renderer.hidden.of(turns, None) == ("reasoning",)
    assert renderer.hidden.of(thought_and_answer(None), None) == ()
    assert Renderer(settings(), ChatTemplate(LAST_THINKS)).hidden.of(turns, None) == ()


def test_a_template_that_shows_all_reasoning_gives_one_sequence(tmp_path: Path) -> None:
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer")
    renderer = Renderer(settings(), ChatTemplate(Rendering.of(tokenizer, None).template))
    turn = [*chat()["messages"], *chat()["messages"]]
    turn[1]["reasoning_content"] = "because"
    assert len(texts_of(renderer, turn)) == 1


def test_equal_questions_stay_on_one_side() -> None:
    row = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]
    assert Conversation("messages", row).first_question == "2+2?"
    split = Split({"train": 0.5, "valid": 0.5, "test": 0}, salt="questions")
    assert split.of("2+2?") == split.of(" 2+2? ")


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("messages", {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}),
        ("prompt_response", {"prompt": "2+2?", "response": "4"}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}),
    ],
)
def test_three_forms_of_a_row_give_one_conversation(form: str, row: dict) -> None:
    renderer = Renderer(settings(f"data_prep.format={form}"), ChatTemplate(find_template("nano3")))
    messages = renderer.read(Row(row, "f", 1)).messages
    assert [(turn["role"], turn["content"]) for turn in messages] == [("user", "2+2?"), ("assistant", "4")]


@pytest.mark.parametrize("form", ["prompt_response", "auto"])
@pytest.mark.parametrize("number", ["4", "1.50", "3.14159265358979323846", "123456789012345678901234567890", "1e21"])
def test_a_number_as_answer_keeps_its_digits(form: str, number: str) -> None:
    row = json_row("a.jsonl", 1, f'{{"id": 7, "prompt": "How many?", "response": {number}}}'.encode())
    assert isinstance(row, Row)
    renderer = Renderer(settings(f"data_prep.format={form}"), ChatTemplate(find_template("nano3")))
    assert renderer.read(row).messages[-1]["content"] == number


def test_a_missing_template_file_is_named(tmp_path: Path) -> None:
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer")
    with pytest.raises(UserError, match=r"none\.jinja"):
        Rendering.of(tokenizer, "none.jinja")


def test_what_is_left_of_cut_texts() -> None:
    tokens = Tokens(np.arange(10), np.array([1, 1, 1, 0, 0, 1, 1, 0, 0, 0], np.uint8), np.array([0, 3, 7, 7, 10]))
    assert tokens.all_masked().tolist() == [True, False, False, False]
    assert tokens.learnt(np.array([3, 4, 0, 3])).tolist() == [2, 2, 0, 0]
    assert tokens.learnt(np.array([1, 3, 0, 0])).tolist() == [0, 1, 0, 0]
    ids, mask = tokens.heads(np.array([0, 3, 0, 2]), np.array([1, 3]))
    assert (ids.tolist(), mask.tolist()) == ([3, 4, 5, 7, 8], [0, 0, 1, 0, 0])


QUESTION = {"role": "user", "content": "2+2?"}
FREE = {"messages": [QUESTION, {"role": "assistant", "content": "4"}]}
THOUGHT = {"messages": [QUESTION, {"role": "assistant", "content": "4", "reasoning_content": "two and two"}]}
NEVER_MIND = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>
{%- else %}<think></think>{% endif %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>
{%- endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
OFF, ON = thinking_by_default(find_template("nano3"), False), thinking_by_default(find_template("nano3"), True)


def prompt(source: str, **options: Any) -> bool | None:
    return thinks(ChatTemplate(source).render([QUESTION], None, True, **options))


def test_a_default_is_set_once_and_obeys_whoever_says_otherwise() -> None:
    assert thinking_by_default(ON, False) == OFF
    assert [prompt(find_template("nano3")), prompt(ON), prompt(OFF)] == [True, True, False]
    for source in (ON, OFF):
        assert prompt(source, enable_thinking=True) is True
        assert prompt(source, enable_thinking=False) is False
        assert prompt(source, chat_template_kwargs={"enable_thinking": False}) is False
        rows = (FREE["messages"], THOUGHT["messages"])
        for messages in rows:
            same = ChatTemplate(find_template("nano3")).render_with_spans(messages)
            assert ChatTemplate(source).render_with_spans(messages) == same


@pytest.mark.parametrize(
    ("template", "rows", "published", "said"),
    [
        ("nano3", [FREE, FREE], OFF, "all answers are learnt without a thought; unless somebody says"),
        ("nano3", [THOUGHT, FREE], None, "1 of 2 answers are learnt without a thought; unless somebody says"),
        ("nano3", [THOUGHT], None, ""),
        (OFF, [THOUGHT], ON, "all answers are learnt with a thought; unless somebody says"),
        (OFF, [FREE], None, ""),
        (NEVER_MIND, [FREE], None, "always asks for answers with a thought: the model never saw the prompts"),
        (None, [FREE], None, ""),
    ],
)  # fmt: skip
def test_the_published_template_asks_as_was_learnt(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    template: str | None,
    rows: list,
    published: str | None,
    said: str,
) -> None:
    source, file = tmp_path / "chats.jsonl", tmp_path / "given.jinja"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"run.home={tmp_path / 'home'}", f"data_prep.source={source}", "data_prep.workers=1"]
    words += ["data_prep.split={train: 1.0, valid: 0.0, test: 0.0}"]
    if template is not None:
        file.write_text(find_template(template) if template == "nano3" else template)
        words.append(f"data_prep.chat_template={file}")
    made = make(load(STEP, Arguments("tiny", tuple(words), dry_run=False, json=False)))[0]
    found = TokenizerFolder(made.path / "tokenizer").chat_template()
    if published is not None:
        assert found == published
    elif template is not None:
        assert found == file.read_text()
    lines = [line for line in capsys.readouterr().err.splitlines() if "learnt" in line]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


def test_answers_that_leave_it_open_change_nothing() -> None:
    rendering = Rendering(find_template("nano3"), "nano3", {})
    assert template_as_learnt(rendering, 0, 0) == (None, None)
    assert template_as_learnt(rendering, 5, 0) == (None, None)


GOOD = {"question": "2+2?", "answer": "4"}


def chosen(
    tmp_path: Path,
    *rows: str,
    more: tuple[str, ...] = (),
    change: Callable[[TokenizerFolder], object] = lambda folder: None,
) -> dict[str, object]:
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(row + "\n" for row in rows))
    tree = compose(CONFIG, "local", [f"data_prep.source={file}", "data_prep.tokenizer.model=tiny", *more]).tree
    config = SFTConfig.model_validate(resolve(tree, lambda role, field: None))
    folder = provide_tokenizer("tiny", tmp_path / "tokenizer")
    (folder.path / "config.json").write_text("{}")
    change(folder)
    return {choice.key: choice.value for choice in data_choices(config, folder.path)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"question": "2+2', r"chats\.jsonl:2: malformed JSON"),
        (json.dumps({"messages": [{"role": "robot", "content": "x"}]}), r"chats\.jsonl:2: unknown role"),
        (json.dumps({"question": "2+2?", "answer": ""}), r"chats\.jsonl:2: no answer"),
    ],
)
def test_a_bad_row_ends_the_choice_unless_such_rows_are_left_out(tmp_path: Path, row: str, said: str) -> None:
    rows = json.dumps(GOOD), row
    with pytest.raises(UserError, match=said) as caught:
        chosen(tmp_path, *rows)
    assert "data_prep.on_bad_row=reject" in str(caught.value)
    assert chosen(tmp_path, *rows, more=("data_prep.on_bad_row=reject",))["data_prep.pack_size"] == 128


def test_without_a_row_that_can_be_used_nothing_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of its first rows"):
        chosen(tmp_path, "{}", more=("data_prep.on_bad_row=reject",))


@pytest.mark.parametrize(("mark", "template"), [("<|im_end|>", "nano3"), ("<|end|>", "plain")])
def test_a_template_is_chosen_whose_marks_the_tokenizer_has(tmp_path: Path, mark: str, template: str) -> None:
    def bare(folder: TokenizerFolder) -> None:
        (folder.path / "chat_template.jinja").unlink()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            file = folder.path / name
            file.write_text(file.read_text().replace("<|im_end|>", mark))

    assert chosen(tmp_path, json.dumps(GOOD), change=bare)["data_prep.chat_template"] == template


def test_a_mark_without_an_embedding_is_an_error_before_any_work(tmp_path: Path) -> None:
    def model_of(rows: int, key: str = "vocab_size", **more: object) -> Callable[[TokenizerFolder], object]:
        return lambda folder: (folder.path / "config.json").write_text(json.dumps({key: rows, **more}))

    end = provide_tokenizer("tiny", tmp_path / "tiny").tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    for few in (model_of(end), model_of(0, "other", text_config={"vocab_size": end})):
        with pytest.raises(UserError, match=r"its chat template writes '<\|im_\w+\|>', token \d+, and the model has"):
            chosen(tmp_path, json.dumps(GOOD), change=few)
    unused = model_of(VOCAB_SIZE - 1)  # no template writes the last token
    assert "data_prep.pack_size" in chosen(tmp_path, json.dumps(GOOD), change=unused)
    (tmp_path / "tokenizer" / "config.json").write_text(json.dumps({"vocab_size": end}))
    words = f"data_prep.source={tmp_path / 'chats.jsonl'}", f"data_prep.tokenizer.model={tmp_path / 'tokenizer'}"
    found = look(config(*words))
    assert ["and the model has" in str(problem) for problem in found] == [True]


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (16, "the model's context is 16 tokens: shorten the rows"),
        (48, r"up to the model's context: data_prep.pack_size=48"),
        (None, r"let longer rows in: data_prep.pack_size=(64|128)"),
    ],
)
def test_rows_are_let_in_as_far_as_the_model_reads(tmp_path: Path, context: int | None, said: str) -> None:
    folder, source = provide_tokenizer("tiny", tmp_path / "model").path, tmp_path / "chats.jsonl"
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": context} if context else {}))
    long = {"messages": [{"role": "user", "content": "2+2? " * 8}, {"role": "assistant", "content": "4"}]}
    source.write_text(json.dumps(long) + "\n")
    words = [f"run.home={tmp_path / 'home'}", f"data_prep.source={source}", "data_prep.workers=1"]
    words += ["data_prep.split={train: 1.0, valid: 0.0, test: 0.0}", "data_prep.pack_size=16"]
    words.append(f"data_prep.tokenizer.model={folder}")
    with pytest.raises(UserError) as caught:
        make(load(STEP, Arguments("tiny", tuple(words), dry_run=False, json=False)))
    assert re.search(said, str(caught.value))


def test_a_damaged_template_is_not_called_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"chat_template\.jinja: not a text in UTF-8"):
        chosen(tmp_path, json.dumps(GOOD), change=lambda it: (it.path / "chat_template.jinja").write_bytes(b"\xff"))


def test_marks_that_are_no_tokens_are_an_error_before_any_work(tmp_path: Path) -> None:
    template = "data_prep.chat_template='{%- for m in messages %}{{ m.role + m.content + \"<|mark|>\" }}{%- endfor %}'"
    with pytest.raises(UserError, match=r"answers end with '<\|mark\|>'"):
        chosen(tmp_path, json.dumps(GOOD), more=(template,))
