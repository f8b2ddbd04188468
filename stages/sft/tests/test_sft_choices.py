"""What is chosen by the first rows; a row that would end the preparation ends the choice already."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.errors import UserError
from stages.sft.choices import data_choices
from stages.sft.schema import SFTConfig

CONFIG = Path(__file__).parent.parent / "config"
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


def test_a_damaged_template_is_not_called_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"chat_template\.jinja: not a text in UTF-8"):
        chosen(tmp_path, json.dumps(GOOD), change=lambda it: (it.path / "chat_template.jinja").write_bytes(b"\xff"))


def test_marks_that_are_no_tokens_are_an_error_before_any_work(tmp_path: Path) -> None:
    template = "data_prep.chat_template='{%- for m in messages %}{{ m.role + m.content + \"<|mark|>\" }}{%- endfor %}'"
    with pytest.raises(UserError, match=r"answers end with '<\|mark\|>'"):
        chosen(tmp_path, json.dumps(GOOD), more=(template,))
