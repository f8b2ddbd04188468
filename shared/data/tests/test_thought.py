"""A completion is judged together with the thought that its prompt has opened."""

import pytest

from nemotron_data.chat.thought import after_thought, opens_thought, whole_answer


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("assistant\n<think>", True),
        ("assistant\n<think>\n", True),
        ("<think>a</think>b<|im_end|>assistant\n<think>\n\n", True),
        ("assistant\n<think></think>", False),
        ("assistant\n<think>\n\n</think>\n\n", False),
        ("user\nwhat is <think>?\nassistant\n", False),
        ("", False),
    ],
)
def test_whether_a_prompt_ends_in_a_thought(prompt: str, opened: bool) -> None:
    assert opens_thought(prompt) == opened
    assert whole_answer(prompt, "7") == ("<think>7" if opened else "7")


@pytest.mark.parametrize(
    ("answer", "follows"),
    [
        ("7", "7"),
        ("<think>3+4</think>\n 7\n", "\n 7\n"),
        ("3+4</think>7", "7"),
        ("<think>3+4", None),
        ("<think>a</think>7<think>or", None),
        ("<think>a</think>8<think>b</think>7", "7"),
        ("<think></think>", ""),
    ],
)
def test_what_follows_a_thought(answer: str, follows: str | None) -> None:
    assert after_thought(answer) == follows
