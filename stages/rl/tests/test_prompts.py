"""What a row asks for reaches the model, is counted, or is refused."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import last_values_win, short
from zoo import write

from nemotron_data.chat.prompt import Prompt, Prompter
from nemotron_data.chat.template import find_template
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_shared.system.errors import UserError
from stages.rl import train
from stages.rl.engines.trl.prompts import read_prompts

main = last_values_win(train.main)
GRPO: Any = SimpleNamespace(temperature=1.0, top_p=1.0, max_new_tokens=20)
ASKED = {"role": "user", "content": "3+4?"}


@pytest.fixture(scope="module")
def prompter(tmp_path_factory: pytest.TempPathFactory) -> Prompter:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Prompter(load_tokenizer(folder))


def read(folder: Path, prompter: Prompter, *parameters: dict[str, Any]) -> tuple[list[Prompt], list[str]]:
    """The prompts, and what is said of them."""
    file, said = folder / "train.jsonl", list[str]()
    rows = ({"responses_create_params": each, "expected_answer": "7"} for each in parameters)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: Any = SimpleNamespace(say=said.append)
    rows, prompts = read_prompts(file, prompter, GRPO, run)
    return [prompts[name] for name in rows["prompt"]], said


def test_turns_are_read_as_in_fine_tuning(tmp_path: Path, prompter: Prompter) -> None:
    parts = [{"type": "input_text", "text": "3+4?"}]
    lines = [{"type": "input_text", "text": text} for text in ("Add:", "3+4?")]
    plain, named, instructed, both, text, apart = read(
        tmp_path, prompter,
        {"input": [{"role": "system", "content": "Be brief."}, ASKED]},
        {"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]},
        {"input": [ASKED], "instructions": "Be brief.", "tools": [], "temperature": None},
        {"input": [{"role": "system", "content": "Add."}, ASKED], "instructions": "Be brief."},
        {"input": "3+4?"},
        {"input": [{"role": "user", "content": lines}]},
    )[0]  # fmt: skip
    assert "user\nAdd:\n3+4?<" in apart.text
    assert plain == named == instructed and "system" in plain.text and "Be brief." in plain.text
    assert "Be brief.\n\nAdd." in both.text
    render = prompter.tokenizer.apply_chat_template
    assert text.text == render([ASKED], tokenize=False, add_generation_prompt=True)
    assert text.ids == render([ASKED], add_generation_prompt=True, return_dict=False)


def test_tools_and_calls_are_shown_or_told_of(tmp_path: Path, prompter: Prompter) -> None:
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]
    called = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "7"}
    prompts, said = read(tmp_path, prompter, {"input": [ASKED, called, output], "tools": tools})
    assert "add" in prompts[0].text and said == []
    silent = copy.deepcopy(prompter.tokenizer)
    silent.chat_template = "{% for m in messages %}{{ m.content or '' }}{% endfor %}"
    _, said = read(tmp_path, Prompter(silent), {"input": [ASKED], "tools": tools}, {"input": [ASKED]})
    assert said == ["WARNING: train.jsonl: the chat template shows no tools: 1 of 2 prompts lose theirs"]


def test_names_of_control_tokens_are_text(tmp_path: Path, prompter: Prompter) -> None:
    written, own = read(tmp_path, prompter, {"input": "<|im_end|>"}, {"input": "x"})[0]
    end = prompter.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert written.ids.count(end) == own.ids.count(end)
    assert written.text.count("<|im_end|>") == own.text.count("<|im_end|>") + 1


def test_what_the_config_says_for_all_rows_is_counted_in_one_line(tmp_path: Path, prompter: Prompter) -> None:
    rows = [{"input": "3+4?", "temperature": 0.2, "metadata": {"a": "b"}}, {"input": "3+4?", "temperature": 0.5}]
    _, said = read(tmp_path, prompter, *rows, {"input": "3+4?", "temperature": 1.0, "max_output_tokens": 3})
    assert said == [
        "train.jsonl: row parameters that engine trl ignores: max_output_tokens (1 row; "
        "grpo.max_new_tokens=20 counts), metadata (1 row), temperature (2 rows; grpo.temperature=1.0 counts)"
    ]
    assert read(tmp_path, prompter, {"input": "3+4?", "temperature": 1, "max_output_tokens": 20})[1] == []


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"input": [ASKED], "previous_response_id": "r1"}, "the row has 'previous_response_id'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "an image"),
        ({"input": [ASKED, {"type": "computer_call"}]}, "'computer_call'"),
    ],
)
def test_what_cannot_be_shown_is_refused(tmp_path: Path, prompter: Prompter, parameters: dict, fault: str) -> None:
    with pytest.raises(UserError, match=r"train.jsonl:2: .*") as refused:
        read(tmp_path, prompter, {"input": "3+4?"}, parameters)
    assert fault in refused.value.message and "environment=nemo_gym" in str(refused.value.remedy)


def test_a_template_that_cannot_show_a_row_is_named_with_it(tmp_path: Path, prompter: Prompter) -> None:
    strict = copy.deepcopy(prompter.tokenizer)
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UserError, match=r"train.jsonl:1: .*roles must alternate"):
        read(tmp_path, Prompter(strict), {"input": "3+4?"})


def test_a_prompt_beyond_the_embeddings_names_the_token(prompter: Prompter) -> None:
    few = Prompter(prompter.tokenizer, embeddings=3)
    with pytest.raises(UserError, match=r"the prompt holds '.+', token \d+, and the model has 3 embeddings"):
        few.chat([ASKED])
    whole = Prompter(prompter.tokenizer, embeddings=len(prompter.tokenizer))
    assert whole.chat([ASKED]).ids == prompter.chat([ASKED]).ids


def test_a_model_without_a_chat_template_is_refused_with_a_remedy_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything runs, and for each method; a template of ours beside it is taken."""
    folder = write("qwen3", tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    words = [*short("rl"), f"run.model={folder}", "--rehearsed", "--dry-run"]
    assert main(words) == 1
    told = capsys.readouterr().out
    assert f"{folder} has no chat template, by which prompts are shown to it" in told
    assert "data_prep.chat_template=plain" in told and "nemo_rl" not in told
    assert find_template("plain"), "the name is one of those that fine-tuning takes"
    (folder / "chat_template.jinja").write_text(find_template("plain"))
    assert main(words) == 0


def test_what_a_template_refuses_is_said_with_the_template_s_remedy(tmp_path: Path, prompter: Prompter) -> None:
    strict = copy.deepcopy(prompter.tokenizer)
    strict.chat_template = "{{ raise_exception('No system role') }}"
    with pytest.raises(UserError, match=r"train.jsonl:1: .*No system role") as caught:
        read(tmp_path, Prompter(strict), {"input": [ASKED]})
    assert "nemo_rl" not in str(caught.value.remedy)
    with pytest.raises(UserError) as caught:
        read(tmp_path, prompter, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})
    assert "leave such rows out, or train on them on GPUs with engine=nemo_rl" in str(caught.value.remedy)
