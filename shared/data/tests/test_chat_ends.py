"""What closes an answer is one token of the tokenizer, and the template that says so travels with the tokenizer."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.shown import EndToken, learnt_end
from nemotron_data.chat.template import find_template
from nemotron_data.tokenizers.folder import TokenizerFolder, copy_tokenizer
from nemotron_shared.errors import UserError

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
    with pytest.raises(UserError, match=r"t\.jinja: answers end with '<\|im_end\|>', which is no token") as caught:
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
