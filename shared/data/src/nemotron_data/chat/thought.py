r"""Join completions with a thought that their prompt has already opened.

Many chat templates, including Nemotron 3's, end the prompt with `<think>`, so the completion starts inside a thought.
Without the prompt it would look like an answer.

    whole_answer("...<|im_start|>assistant\n<think>\n", "3+4=7</think>7")     "<think>3+4=7</think>7"
    whole_answer("...<|im_start|>assistant\n<think>\n", "so it is 7")          "<think>so it is 7", never closed
    whole_answer("...<|im_start|>assistant\n", "7")                             "7"
"""

import re

OPEN, CLOSE = "<think>", "</think>"
OPENED, CLOSED = re.compile(rf"{OPEN}\s*$"), re.compile(rf"{OPEN}\s*{CLOSE}\s*$")


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends inside a thought that the template opened."""
    return bool(OPENED.search(prompt)) and not CLOSED.search(prompt)


def whole_answer(prompt: str, completion: str) -> str:
    """Completion as rewards and evaluation judge it, including the opening tag if the prompt has opened a thought.

    Args:
        prompt: the whole rendered text that the model continued.
    """
    return OPEN + completion if opens_thought(prompt) else completion
