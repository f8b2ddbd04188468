"""From rows to texts and their spans, and what is kept of tokens."""

from pathlib import Path

import numpy as np
import pytest

from nemotron_data.chat.guards import Rendered
from nemotron_data.chat.template import ChatTemplate, find_template
from nemotron_data.sources.reading import Row, json_row
from nemotron_data.split import Split
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.errors import UserError
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


def thinks(thought: str | None, question: str = "2+2?") -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": "4", "reasoning_content": thought}]


def trained(renderer: Renderer, turns: list[dict]) -> list[str]:
    texts = texts_of(renderer, turns)
    return ["".join(text[start:end] for start, end in spans) for text, spans, _ in texts]


def test_questions_are_told_apart_where_the_template_prompts_unasked() -> None:
    prompt = "{% if messages[-1].role == 'user' %}{{ '<|assistant|>\n<think>\n' }}{% endif %}"
    renderer = Renderer(settings(), ChatTemplate(LAST_THINKS + prompt))
    assert trained(renderer, thinks("why") + thinks("so")) == [
        "<think>\nwhy</think>4<|end|>",
        "<think>\nso</think>4<|end|>",
    ]
    assert trained(renderer, thinks("why") + thinks(None)) == ["<think>\nwhy</think>4<|end|>", "4<|end|>"]
    assert trained(renderer, thinks("why")) == ["<think>\nwhy</think>4<|end|>"]
    within = [{"role": "assistant", "content": "<think>\nwhy</think>4"}]
    shown = "(m.content if loop.index0 > ns.last else m.content.split('</think>')[-1]) + '<"
    forgets = LAST_THINKS.replace("m.content + '<", shown)
    asked = [{"role": "user", "content": "2+2?"}]
    apart = trained(Renderer(settings(), ChatTemplate(forgets + prompt)), [*asked, *within, *asked, *within])
    assert apart == ["<think>\nwhy</think>4<|end|>"] * 2
    greeted = [{"role": "assistant", "content": "hi"}, *thinks("why"), *thinks("so")]
    assert trained(renderer, greeted)[0] == "hi<|end|><think>\nwhy</think>4<|end|>"


@pytest.mark.parametrize("thought", ["4", "2+2", "end"])
def test_a_thought_is_lost_though_its_words_stand_elsewhere(thought: str) -> None:
    renderer = Renderer(
        settings(), ChatTemplate(LAST_THINKS + "{% if add_generation_prompt %}<|assistant|>\n{% endif %}")
    )
    assert trained(renderer, thinks(thought) + thinks(None)) == [f"<think>\n{thought}</think>4<|end|>", "4<|end|>"]


def test_a_template_without_reasoning_splits_nothing_and_is_counted() -> None:
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    renderer = Renderer(settings(), ChatTemplate(source))
    turns = thinks("why") + thinks("so")
    assert trained(renderer, turns) == ["4<|end|>4<|end|>"]
    assert renderer.hidden.of(turns, None) == ("reasoning",)
    assert renderer.hidden.of(thinks(None), None) == ()
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
