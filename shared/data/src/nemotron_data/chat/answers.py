r"""Where the answers are in what a chat template without {% generation %} gives.

    <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think></think>4<|im_end|>\n
                                                            ~~~~~~~~~~~~~~~~~~~~~~~~~

`turns` tells what the loop over the messages put out for an answer. Of that, the header goes that the prompt ends with.
All else counts, as in the templates that others mark by hand: reasoning, also where the prompt opens it with <think>;
tool calls; the mark and the line's end that close the turn. What the template strips is not there to count.

Every conversation is rendered a second time with words put into its texts. The assistant's have to come out in the
answers and nowhere else, and no others in them; a conversation that fails this, or any other doubt, is refused.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from nemotron_data.chat.rows import REASONING_NAMES, Message
from nemotron_data.chat.turns import Span, Trace
from nemotron_shared.errors import UserError

ADD_MARKS = "put {% generation %} ... {% endgeneration %} around what the assistant writes in the chat template"
ASKED, SAID = "Zquestionz", "Zanswerz"
QUESTION, ANSWER = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
# <think>, </think>, <seed:think>, [THINK], <|START_THINKING|>, <|channel>thought
THOUGHT = re.compile(r"<\|channel>thought|[<\[◁][^<>\[\]◁▷\s]*think[^<>\[\]◁▷\s]*[>\]▷]", re.IGNORECASE)
END_MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")

Tracer = Callable[[Sequence[Message], Any, bool, dict[str, Any]], Trace]
"""Renders messages with tools, with or without the prompt at the end, with options."""


@dataclass(frozen=True, slots=True)
class Frame:
    r"""What a template puts around a plain answer, in so far as the assistant did not write it or it is not in its turn.

    Attributes:
        header: before it, such as "<|im_start|>assistant\n"; empty where prompts end with the question.
        closed_later: the end mark of an answer where only the next question puts it out.
    """

    header: str
    closed_later: str


class AnswerFinder:
    """Finds the answers of conversations in the text of one template."""

    def __init__(self, trace: Tracer, eos_token: str) -> None:
        self._trace = trace
        self._eos_token = eos_token
        self._usual: Frame | None = None

    def find(self, messages: Sequence[Message], tools: Any, options: dict[str, Any]) -> tuple[str, list[Span]]:
        """The text, and the [start, end) characters that the assistant wrote, in order and disjoint."""
        if options or self._usual is None:
            frame = self._frame(options)
            self._usual = self._usual if options else frame
        else:
            frame = self._usual
        trace = self._trace(messages, tools, False, options)
        self._check(messages, tools, options)
        spans: list[Span] = []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or not trace.parts[i]:
                continue
            header = self._header(i, frame, trace, messages, tools, options)
            (start, end), *more = trace.parts[i]
            answer = [(start + header, end), *more, *self._end_mark(i, frame, trace)]
            # a space at the end is often one token with the next word, which is not the assistant's
            start, end = answer[-1]
            answer[-1] = start, start + len(trace.text[start:end].rstrip(" "))
            for start, end in answer:
                if start < end and spans and spans[-1][1] == start:
                    spans[-1] = (spans[-1][0], end)
                elif start < end:
                    spans.append((start, end))
        return trace.text, spans

    def _frame(self, options: dict[str, Any]) -> Frame:
        """Look at two plain questions and their answers, and at the prompt for the second one."""
        told = self._trace([QUESTION, ANSWER, QUESTION, ANSWER], None, False, options)
        asked = self._trace([QUESTION, ANSWER, QUESTION], None, True, options)
        answers = [told.of(1).split(SAID), told.of(3).split(SAID)]
        opening, _, rest = told.text.partition(ASKED)
        if any(len(answer) != 2 for answer in answers) or rest.count(ASKED) != 1 or asked.text.count(ASKED) != 2:
            raise UserError("the chat template does not go through the messages one by one", ADD_MARKS)
        (lead, closing), (last_lead, last_closing) = answers
        (answer_end,), (last_answer,) = (end for _, end in told.parts[1]), (start for start, _ in told.parts[3])
        second = told.text.rindex(ASKED)

        # what the prompt adds to the question
        prompt = asked.text[asked.text.rindex(ASKED) :]
        question = told.text[second:last_answer]
        if not prompt.startswith(question):
            raise UserError("the chat template's prompt ends the question in another way", ADD_MARKS)
        prompt = _before_thought(prompt.removeprefix(question))
        header = commonprefix([_before_thought(lead), _before_thought(last_lead), *([prompt] if prompt.strip() else [])])
        if not header.startswith(prompt.rstrip()):
            raise UserError("the chat template's answers do not begin as its prompts end", ADD_MARKS)

        # does the answer's turn end with its end, no earlier and no later?
        if closing != last_closing and (
            not (self._is_end(closing) and self._is_end(last_closing))
            or (closing.strip() and opening.rstrip().endswith(closing.strip()))
        ):
            raise UserError("the chat template puts more than an answer into the answer's turn", ADD_MARKS)
        if ASKED in told.of(0):
            opening = told.of(0).partition(ASKED)[0]  # without what stands before the loop
        second_opening = told.text[answer_end:second]
        same = len(commonprefix([opening[::-1], second_opening[::-1]]))
        later = second_opening[: len(second_opening) - same]
        if later.strip() and not (self._is_end(later) and second_opening[-same:].strip()):
            raise UserError("the chat template opens later questions in another way", ADD_MARKS)
        return Frame(header if header.strip() else "", later if later.strip() else "")

    def _is_end(self, text: str) -> bool:
        return text.strip() in ("", self._eos_token) or END_MARK.fullmatch(text.strip()) is not None

    def _header(
        self, i: int, frame: Frame, trace: Trace, messages: Sequence[Message], tools: Any, options: dict[str, Any]
    ) -> int:
        """How many characters of turn i the prompt already holds."""
        start, end = trace.parts[i][0]
        answer = trace.text[start:end]
        follows_question = i == 0 or messages[i - 1].get("role") in ("user", "system")
        if answer.startswith(frame.header) and (frame.header or follows_question):
            return len(frame.header)
        # after a tool's message many templates go on with the assistant's turn, some behind a mark
        asked = self._trace(messages[:i], tools, True, options)
        prompt = asked.text[asked.end :]
        last = next((j for j, parts in enumerate(asked.parts) if parts and parts[-1][1] == asked.end), i)
        if last < i and messages[last].get("role") != "assistant":
            # the prompt may be part of the last message's turn
            known, now = trace.of(last), asked.of(last)
            prompt = now.removeprefix(known) + prompt if now.startswith(known) else now
        prompt = _before_thought(prompt).rstrip()
        if answer.startswith(prompt):
            return len(prompt)
        raise UserError(f"the chat template begins an answer unlike its prompt: turn {i} cannot be located", ADD_MARKS)

    def _end_mark(self, i: int, frame: Frame, trace: Trace) -> list[Span]:
        """The end mark of turn i where the template puts it out after the turn."""
        after = next((parts[0][0] for parts in trace.parts[i + 1 :] if parts), None)
        if after is not None:
            later = frame.closed_later
            return [(after, after + len(later))] if later and trace.text.startswith(later, after) else []
        rest = trace.text[trace.end :]
        if i < len(trace.parts) - 1 or not rest.strip():
            return []
        if self._is_end(rest):
            return [(trace.end, len(trace.text))]
        if frame.header and rest.startswith(frame.header):
            return []  # a template that puts out a prompt, asked or not
        raise UserError(f"the chat template ends with text of its own: {rest.strip()[:40]}", ADD_MARKS)

    def _check(self, messages: Sequence[Message], tools: Any, options: dict[str, Any]) -> None:
        """Do words that are put into the texts come out where the answers are, or where they are not?"""
        changed = [_with_words(message) for message in messages]
        trace = self._trace(changed, tools, False, options)
        said = 0
        for i, message in enumerate(changed):
            if message.get("role") != "assistant":
                continue
            text = trace.of(i)
            if ASKED in text:
                raise UserError(f"the chat template puts other texts into turn {i}, an answer", ADD_MARKS)
            if SAID not in text and SAID in (message.get("content") or "") and not message.get("tool_calls"):
                raise UserError(f"the chat template does not show turn {i}, an answer", ADD_MARKS)
            said += text.count(SAID)
        if said != trace.text.count(SAID):
            raise UserError("the chat template shows answers outside of their turns", ADD_MARKS)


def _before_thought(text: str) -> str:
    thought = THOUGHT.search(text)
    return text[: thought.start()] if thought else text


def _with_words(message: Message) -> Message:
    """The message with a word in its content, its reasoning and the texts in its tool calls' arguments."""
    word = SAID if message.get("role") == "assistant" else ASKED
    changed = {
        name: _with_word(value, word) if name in ("content", *REASONING_NAMES) and isinstance(value, str) else value
        for name, value in message.items()
    }
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_call_with_words(call, word) for call in calls]
    return changed


def _call_with_words(call: dict[str, Any], word: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    arguments = {
        name: _with_word(value, word) if isinstance(value, str) else value
        for name, value in function["arguments"].items()
    }
    return {**call, "function": {**function, "arguments": arguments}}


def _with_word(text: str, word: str) -> str:
    """Before the last character, or the tag that the text ends with: templates look at beginnings and ends."""
    end = len(text.rstrip())
    if not end:
        return text
    tag = text.rfind("<", 0, end) if text[end - 1] == ">" else -1
    at = tag if tag >= 0 else end - 1
    return text[:at] + word + text[at:]
