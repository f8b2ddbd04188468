"""Try chat templates without marks on conversations, and write docs/chat-templates.md:

python shared/data/tests/template_matrix.py
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from public_styles import FRAMES, STYLES
from template_conversations import conversation
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

from nemotron_data.chat.spans import Span
from nemotron_data.chat.template import ChatTemplate
from nemotron_shared.system.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "chat-templates.md"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CONVERSATIONS = 200
# Tests of the engines put a confined one in its place, which gives no spans.
COMPILE = chat_template_utils._compile_jinja_template

INTRODUCTION = """\
# Chat templates without marks

Where a chat template has no `{% generation %}`, data preparation finds the assistant's text itself by following the \
loop over the messages, each pass of which outputs one message's text. What it counts:

- everything after the header that the prompt ends with, such as `<|im_start|>assistant\\n`: tool calls, the text, \
and the reasoning, even where the prompt opens it with `<think>\\n`;
- the mark that ends the turn, and the line break after it; not a space;
- the end-of-text token after the last turn, if the template puts one there;
- not the reasoning that a template strips from earlier turns, because it is not in the text. \
`data_prep.split_turns` says whether such a conversation becomes one sequence for each question.

An answer's text must be what the template gives for it in a plain conversation, without a system prompt, tools or \
other fields, and there it may hold only marks besides what the message says. So a template that puts a reminder, a \
time, someone else's words or the next turn's header into the assistant's turn is refused with the reason, as is one \
that mixes two authors in a turn or keeps no order of turns: mark it, or give another. A template that ends an \
answer only by beginning the next turn, as GLM's does, teaches no end; a notice says \
that. What closes an answer has to be one token of the tokenizer, because programs stop at tokens only.

Names of control tokens in a message go through the template as text, see [Control tokens in \
texts](data.md#control-tokens-in-texts): a mark that occurs in no text is put inside them, and removed after \
rendering.

Fine-tuning, RL with TRL, evaluation, `chat`, `generate` and `serve` render by the same code: the same conversation \
has the same ids in all of them. `tests/test_doors.py` sends conversations through every one.

An answer that only calls tools has no content for the template, as in transformers. Templates that refuse that, or \
show no call then, get null (those that ask whether `content is none`) or an empty text.

A template that takes more than any conversation needs is one error: 10 s of processor time, 1 GiB of memory, or a \
text of more than 262,144 characters plus 16 times the conversation's.

The table covers templates written in the styles of public ones, each on {count} conversations: with and without \
tools, reasoning, system prompts, several turns, empty contents, and texts that look like markup. **Same** means the \
text of transformers' own rendering and the mask of the same template marked by hand. The page is written by \
`shared/data/tests/template_matrix.py`.

| style | templates | conversations | same | refused | different |
|---|--:|--:|--:|--:|--:|
"""


@dataclass
class Outcome:
    """What became of the conversations of one template; `examples` of those that differ, and reasons of refusals."""

    same: int = 0
    refused: int = 0
    different: int = 0
    unfit: int = 0
    """Transformers refuses them, too."""
    examples: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Conversations that transformers renders."""
        return self.same + self.refused + self.different


Twin = Callable[[list[dict], Any], tuple[str, list[Span]]]
"""Messages and tools to a marked template's text and spans."""


def transformers_spans(marked: str) -> Twin:
    """As transformers gives them."""

    def spans_of(messages: list[dict], tools: Any) -> tuple[str, list[Span]]:
        with patch.object(chat_template_utils, "_compile_jinja_template", COMPILE):
            (text,), (spans,) = render_jinja_template(
                [messages], tools=tools, chat_template=marked, return_assistant_tokens_mask=True, **TOKENS
            )
        return text, spans

    return spans_of


def compare(
    unmarked: str, twin: Twin | None, count: int, fits: dict[str, bool] | None = None, twin_may_differ: bool = False
) -> Outcome:
    """Texts with transformers', spans with the twin's; a twin that gives another text may say nothing."""
    template, outcome = ChatTemplate(unmarked, **TOKENS), Outcome()
    for seed in range(count):
        messages, tools = conversation(seed, **fits or {})
        seen = [as_templates_read(message) for message in messages]
        try:
            (expected,), _ = render_jinja_template([seen], tools=tools, chat_template=unmarked, **TOKENS)
        except Exception:
            outcome.unfit += 1  # whatever a template's code raises
            continue
        try:
            text, spans = template.render_with_spans(messages, tools)
        except UserError as error:
            outcome.refused += 1
            outcome.examples.append(f"{seed}: {error.message}")
            continue
        marked_text, marked = twin(seen, tools) if twin else (text, spans)
        if text == expected and (
            (marked_text == text and covered(marked) == covered(spans)) or (marked_text != text and twin_may_differ)
        ):
            outcome.same += 1
        else:
            outcome.different += 1
            ours, theirs = ([text[start:end] for start, end in covered(found)] for found in (spans, marked))
            outcome.examples.append(f"{seed}: {ours} instead of {theirs}")
    return outcome


def as_templates_read(message: dict) -> dict:
    """Without null fields, and with the reasoning under both names that templates know."""
    given = {key: value for key, value in message.items() if value is not None}
    return given | ({"thinking": given["reasoning_content"]} if "reasoning_content" in given else {})


def covered(spans: Iterable[Span]) -> list[Span]:
    """Spans that touch become one."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        elif start < end:
            merged.append((start, end))
    return merged


def marked_spans(marked: str) -> Twin:
    """As our own reading of marks gives them: transformers' places are wrong for marks in macros."""
    template = ChatTemplate(marked, **TOKENS)
    return lambda messages, tools: template.render_with_spans(messages, tools)


def styles_matrix(count: int) -> dict[str, Outcome]:
    """Every style of `public_styles`."""
    return {
        name: compare(
            style.unmarked,
            (marked_spans if name == "all in a macro" else transformers_spans)(style.marked),
            count,
            style.fits,
        )
        for name, style in STYLES.items()
    }


def page(matrix: dict[str, Outcome]) -> str:
    """One line for each frame, and for each template that is one of its kind."""
    groups: dict[str, list[Outcome]] = {}
    for name, outcome in matrix.items():
        first = name.split()[0]
        groups.setdefault(first if first in FRAMES else name, []).append(outcome)
    lines = [_line(name, outcomes) for name, outcomes in groups.items()]
    return (
        INTRODUCTION.replace("{count}", str(CONVERSATIONS))
        + "\n".join([*lines, _line("**all**", [*matrix.values()])])
        + "\n"
    )


def _line(name: str, outcomes: list[Outcome]) -> str:
    sums = [sum(getattr(outcome, what) for outcome in outcomes) for what in ("tried", "same", "refused", "different")]
    return f"| {name} | {len(outcomes)} | {' | '.join(f'{number:,}' for number in sums)} |"


if __name__ == "__main__":
    PAGE.write_text(page(styles_matrix(CONVERSATIONS)), encoding="utf-8")
