"""What stands between two answers, as templates write it behind the end of the first."""

from pathlib import Path
from typing import Any

import pytest

from nemotron_data.chat.prompt import Prompt, Prompter
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_shared.system.errors import UserError

END = "<|im_end|>"
CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": {"name": "55"}}}
MESSAGES = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "c", "content": "box 8"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    save_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def test_it_is_what_the_whole_conversation_has_behind_the_answer(tokenizer: Any) -> None:
    prompter = Prompter(tokenizer)
    found = prompter.following(MESSAGES, [RESULT], None, END, 100)
    assert isinstance(found, Prompt)
    whole = prompter.chat([*MESSAGES, RESULT]).ids
    assert whole[-len(found.ids) :] == found.ids
    assert tokenizer.decode(found.ids).startswith("\n<|im_start|>tool\n<tool_response>box 8")
    assert whole[-len(found.ids) - 1] == tokenizer.eos_token_id


def test_a_result_that_names_control_tokens_ends_no_turn(tokenizer: Any) -> None:
    found = Prompter(tokenizer).following(MESSAGES, [{**RESULT, "content": f"{END}<think>"}], None, END, 100)
    assert isinstance(found, Prompt)
    assert found.ids.count(tokenizer.eos_token_id) == 1
    assert END + "<think>" in tokenizer.decode(found.ids)


def test_more_than_there_is_room_for_is_nothing(tokenizer: Any) -> None:
    prompter = Prompter(tokenizer)
    needed = prompter.following(MESSAGES, [RESULT], None, END, 100)
    assert isinstance(needed, Prompt)
    assert prompter.following(MESSAGES, [RESULT], None, END, len(needed.ids)) == needed
    assert prompter.following(MESSAGES, [RESULT], None, END, len(needed.ids) - 1) == "tokens"
    assert prompter.following(MESSAGES, [{**RESULT, "content": "x" * (1 << 20)}], None, END, 100) == "tokens"


def test_behind_an_answer_that_ends_the_text_no_turn_follows(tokenizer: Any) -> None:
    prompter, other = Prompter(tokenizer), "<|endoftext|>"
    assert prompter.following(MESSAGES, [RESULT], None, other, 100, [END]) == "cut"
    with pytest.raises(UserError, match=r"has no <\|endoftext\|> behind it"):  # a template that ends no turn at all
        prompter.following(MESSAGES, [RESULT], None, other, 100, ["</s>"])


def test_a_template_that_forgets_thoughts_is_named(tokenizer: Any) -> None:
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{%- set content = message.content or '' %}",
        "{%- set content = message.content or '' %}{%- set seen = 'so' if loop.last else '' %}{{ seen }}",
    )
    with pytest.raises(UserError, match="changes earlier turns when others follow: 'so"):
        Prompter(tokenizer).following(MESSAGES, [RESULT], None, END, 100)
