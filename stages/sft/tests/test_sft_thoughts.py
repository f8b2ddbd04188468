"""A model is asked with a thought or without one as it has learnt to answer, by the template that is published."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.chat.template import ChatTemplate, find_template
from nemotron_data.chat.thought import thinking_by_default, thinks
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.runtime.arguments import Arguments
from stages.sft.accounts import template_as_learnt
from stages.sft.data_prep import STEP
from stages.sft.encode import Rendering

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
    made, _ = STEP.make(Arguments("tiny", tuple(words), dry_run=False, json=False))
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
