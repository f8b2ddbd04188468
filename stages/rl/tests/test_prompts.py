"""What a row asks for reaches the model, is counted, or is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_shared.errors import UserError
from stages.rl.engines.trl.prompts import read_prompts

GRPO: Any = SimpleNamespace(temperature=1.0, top_p=1.0, max_new_tokens=20)
ASKED = {"role": "user", "content": "3+4?"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return load_tokenizer(folder)


def read(folder: Path, tokenizer: Any, *parameters: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The prompts, and what is said of them."""
    file, said = folder / "train.jsonl", list[str]()
    rows = ({"responses_create_params": each, "expected_answer": "7"} for each in parameters)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: Any = SimpleNamespace(say=said.append)
    return read_prompts(file, tokenizer, GRPO, run)["prompt"][:], said


def test_turns_are_read_as_in_fine_tuning(tmp_path: Path, tokenizer: Any) -> None:
    parts = [{"type": "input_text", "text": "3+"}, {"type": "input_text", "text": "4?"}]
    plain, named, instructed, both, text = read(
        tmp_path, tokenizer,
        {"input": [{"role": "system", "content": "Be brief."}, ASKED]},
        {"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]},
        {"input": [ASKED], "instructions": "Be brief.", "tools": [], "temperature": None},
        {"input": [{"role": "system", "content": "Add."}, ASKED], "instructions": "Be brief."},
        {"input": "3+4?"},
    )[0]  # fmt: skip
    assert plain == named == instructed and "system" in plain and "Be brief." in plain
    assert "Be brief.\n\nAdd." in both
    assert text == tokenizer.apply_chat_template([ASKED], tokenize=False, add_generation_prompt=True)
    assert tokenizer(text, add_special_tokens=False).input_ids == tokenizer.apply_chat_template(
        [ASKED], add_generation_prompt=True, return_dict=False
    )


def test_what_the_config_says_for_all_rows_is_counted_in_one_line(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"input": "3+4?", "temperature": 0.2, "metadata": {"a": "b"}}, {"input": "3+4?", "temperature": 0.5}]
    _, said = read(tmp_path, tokenizer, *rows, {"input": "3+4?", "temperature": 1.0, "max_output_tokens": 3})
    assert said == [
        "train.jsonl: rows ask for what engine trl does not give them: max_output_tokens (1 row; "
        "grpo.max_new_tokens=20 counts), metadata (1 row), temperature (2 rows; grpo.temperature=1.0 counts)"
    ]
    assert read(tmp_path, tokenizer, {"input": "3+4?", "temperature": 1, "max_output_tokens": 20})[1] == []


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"input": [ASKED], "tools": [{"type": "function", "name": "add"}]}, "the row has 'tools'"),
        ({"input": [ASKED], "previous_response_id": "r1"}, "the row has 'previous_response_id'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "an image"),
        ({"input": [ASKED, {"type": "function_call", "name": "add"}]}, "'function_call'"),
    ],
)
def test_what_cannot_be_shown_is_refused(tmp_path: Path, tokenizer: Any, parameters: dict, fault: str) -> None:
    with pytest.raises(UserError, match=r"train.jsonl:2: .*") as refused:
        read(tmp_path, tokenizer, {"input": "3+4?"}, parameters)
    assert fault in refused.value.message and "environment=nemo_gym" in str(refused.value.remedy)


def test_a_template_that_cannot_show_a_row_is_named_with_it(tmp_path: Path, tokenizer: Any) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise ValueError("roles must alternate")

    with pytest.raises(UserError, match=r"train.jsonl:1: .*cannot show this prompt: roles must alternate"):
        read(tmp_path, SimpleNamespace(apply_chat_template=refuse), {"input": "3+4?"})
