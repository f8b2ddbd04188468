r"""Join completions with a thought that their prompt has already opened.

Many chat templates, including Nemotron 3's, end the prompt with `<think>`, so the completion starts inside a thought.
Without the prompt it would look like an answer.

    whole_answer("...<|im_start|>assistant\n<think>\n", "3+4=7</think>7")     "<think>3+4=7</think>7"
    whole_answer("...<|im_start|>assistant\n<think>\n", "so it is 7")          "<think>so it is 7", never closed
    whole_answer("...<|im_start|>assistant\n", "7")                             "7"
    after_thought("<think>3+4=7</think>7")                                      "7"
    after_thought("<think>so it is 7")                                          None

Also sets what a template prompts with by default, with a thought or without: it must be what answers were learnt after.
"""

import re
from typing import TYPE_CHECKING, Any

from nemotron_shared.system.errors import UserError

if TYPE_CHECKING:
    from nemotron_data.chat.confined import Template

OPEN, CLOSE = "<think>", "</think>"
OPENED, CLOSED = re.compile(rf"{OPEN}\s*$"), re.compile(rf"{OPEN}\s*{CLOSE}\s*$")
BEGUN = re.compile(rf"\s*{OPEN}\s*(?P<closed>{CLOSE})?")
OTHER_MARKS = {
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<thinking>": "</thinking>",
    "<reasoning>": "</reasoning>",
}
"""Of Magistral, Seed-OSS, Command A, Kimi and others."""
SETTING = re.compile(r"\A\{%- set enable_thinking = enable_thinking \| default\((true|false)\) %\}\n")
"""What `thinking_by_default` writes."""

SWITCHES = {"reasoning_effort": ("low", "high"), "enable_thinking": (False, True), "thinking": (False, True)}
"""Options of chat templates for reasoning, with two values each that make different prompts: of gpt-oss; of Nemotron 3
and Qwen 3; of DeepSeek V3.1."""


def switch_of(template: "Template") -> str | None:
    """The first of `SWITCHES` that changes how this template prompts; None if none does."""

    def prompted(**options: Any) -> str | None:
        try:
            return template.render([{"role": "user", "content": "2+2?"}], add_generation_prompt=True, **options)
        except UserError:
            return None

    for name, values in SWITCHES.items():
        one, other = (prompted(**{name: value}) for value in values)
        if one is not None and other is not None and one != other:
            return name
    return None


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends inside a thought that the template opened."""
    return bool(OPENED.search(prompt)) and not CLOSED.search(prompt)


def thinks(prompt: str, answer: str = "") -> bool | None:
    """Whether an answer to a prompt has a thought, by the prompt or else by the answer; None if neither shows it.

    A template that closes the thought in the prompt, `<think></think>`, wants none.
    """
    if CLOSED.search(prompt):
        return False
    if opens_thought(prompt):
        return True
    begun = BEGUN.match(answer)
    return None if begun is None else not begun["closed"]


def thinking_by_default(source: str, wanted: bool) -> str:
    """The same chat template, with `wanted` as the default of `enable_thinking`."""
    return f"{{%- set enable_thinking = enable_thinking | default({str(wanted).lower()}) %}}\n{SETTING.sub('', source)}"


def whole_answer(prompt: str, completion: str) -> str:
    """Completion as rewards and evaluation judge it, including the opening tag if the prompt has opened a thought.

    A thought in the marks of another family, such as [THINK], has `<think>` and `</think>` in their place.

    Args:
        prompt: the whole rendered text that the model continued.
    """
    if opens_thought(prompt):
        return OPEN + completion
    asked, said = prompt.rstrip(), completion.lstrip()
    for opening, closing in OTHER_MARKS.items():
        if asked.endswith(opening):
            return OPEN + completion.replace(closing, CLOSE, 1)
        if said.startswith(opening):
            return OPEN + said.removeprefix(opening).replace(closing, CLOSE, 1)
    return completion


def after_thought(answer: str) -> str | None:
    """What of a whole answer follows its thought, as it stands; None where the thought was never closed."""
    if answer.rfind(OPEN) > answer.rfind(CLOSE):
        return None
    return answer.rpartition(CLOSE)[2]
