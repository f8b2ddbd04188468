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
    r"""What a template puts before and behind a plain answer.

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
        frame = None if options else self._usual
        if frame is None:
            try:
                frame = self._frame(None, options)
            except UserError:
                if not tools:
                    raise
                frame = self._frame(tools, options)  # some templates are for tools alone
            self._usual = self._usual if options else frame
        trace = self._trace(messages, tools, False, options)
        self._check(messages, tools, options)
        spans: list[Span] = []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or not trace.parts[i]:
                continue
            (start, end), *more = trace.parts[i]
            follows_question = i == 0 or messages[i - 1].get("role") in ("user", "system")
            text = trace.text[start:end]
            space = len(text) - len(text.lstrip()) if frame.header else 0
            if text.startswith(frame.header, space) and (frame.header or follows_question):
                header = space + len(frame.header)
            else:
                asked = self._trace(messages[:i], tools, True, options)
                header = _other_header(i, trace, asked, messages)
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

    def _frame(self, tools: Any, options: dict[str, Any]) -> Frame:
        """Look at two plain questions and their answers, and at the prompt for the second one."""
        told = self._trace([QUESTION, ANSWER, QUESTION, ANSWER], tools, False, options)
        asked = self._trace([QUESTION, ANSWER, QUESTION], tools, True, options)
        answers = [told.of(1).split(SAID), told.of(3).split(SAID)]
        if any(len(answer) != 2 for answer in answers) or (told.text.count(ASKED), asked.text.count(ASKED)) != (2, 2):
            raise UserError("the chat template does not go through the messages one by one", ADD_MARKS)
        (lead, end), (last_lead, last_end) = answers
        first, second = told.text.index(ASKED), told.text.rindex(ASKED)

        # what the prompt adds to the question; some templates put it into the question's turn
        question = told.text[second : told.parts[3][0][0]].rstrip()
        prompt = asked.text[asked.text.rindex(ASKED) :]
        if not prompt.startswith(question):
            raise UserError("the chat template's prompt ends the question in another way", ADD_MARKS)
        prompt = _before_thought(prompt.removeprefix(question)).lstrip()
        leads = [_before_thought(lead).lstrip(), _before_thought(last_lead).lstrip()]
        header = common_start(*leads)
        # a prompt may go on with words that answers begin with only at times
        goes_on = header and leads == [header, header] and prompt.startswith(header.rstrip())
        header = common_start(header, prompt) if prompt else header
        if not header.startswith(prompt.rstrip()) and not goes_on:
            raise UserError("the chat template's answers do not begin as its prompts end", ADD_MARKS)

        # what stands before the first question and before the second one should be the same
        opening = told.of(0).partition(ASKED)[0] if ASKED in told.of(0) else told.text[:first]
        second_opening = told.text[told.parts[1][-1][1] : second]
        opening, second_opening = (re.sub(r"\d", "0", text) for text in (opening, second_opening))  # "[Round 2]"
        same = len(common_start(opening[::-1], second_opening[::-1]))
        later = second_opening[: len(second_opening) - same]
        if later.strip() and not (same and self._is_end(later)):
            raise UserError("the chat template opens later questions in another way", ADD_MARKS)
        # an answer with a next turn may end with another mark than the last one, but not with that turn's beginning
        shared = common_start(end.rstrip()[::-1], told.text[:first].rstrip()[::-1])[::-1]
        moved = shared != self._eos_token and END_MARK.search(shared) is not None
        if moved or (end != last_end and not (self._is_end(end) and self._is_end(last_end))):
            raise UserError("the chat template puts more than an answer into the answer's turn", ADD_MARKS)
        return Frame(header if header.strip() else "", later if later.strip() else "")

    def _is_end(self, text: str) -> bool:
        return text.strip() in ("", self._eos_token) or END_MARK.fullmatch(text.strip()) is not None

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
                raise UserError(f"the chat template puts other texts into an answer: turn {i}", ADD_MARKS)
            if SAID not in text and SAID in (message.get("content") or "") and not message.get("tool_calls"):
                raise UserError(f"the chat template does not show an answer: turn {i}", ADD_MARKS)
            said += text.count(SAID)
        if said != trace.text.count(SAID):
            raise UserError("the chat template shows answers outside of their turns", ADD_MARKS)


def common_start(one: str, other: str) -> str:
    """What both begin with."""
    differ = (at for at, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    return one[: next(differ, min(len(one), len(other)))]


def _other_header(i: int, trace: Trace, asked: Trace, messages: Sequence[Message]) -> int:
    """How many characters of turn i `asked`, the prompt for it, ends with.

    After a tool's message many templates go on with the assistant's turn, some behind a mark.
    """
    prompt = asked.text[asked.end :]
    last = next((j for j, parts in enumerate(asked.parts) if parts and parts[-1][1] == asked.end), i)
    if last < i and messages[last].get("role") != "assistant":
        # the prompt may be in the last message's turn, which then is longer than in the whole conversation
        known, now = trace.of(last), asked.of(last)
        prompt = now.removeprefix(known) + prompt
    prompt = _before_thought(prompt).rstrip()
    if not trace.text.startswith(prompt, trace.parts[i][0][0]):
        raise UserError(f"the chat template begins an answer unlike its prompt: turn {i}", ADD_MARKS)
    return len(prompt)


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
