r"""Find assistant spans in the output of a chat template without {% generation %}.

    <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think></think>4<|im_end|>\n
                                                            ~~~~~~~~~~~~~~~~~~~~~~~~~

`turns` reports what the loop over the messages printed for an answer. The header that also ends the prompt is removed.
Everything else counts, as in templates annotated by hand: reasoning (even if the prompt already opens <think>), tool
calls, and the end mark and newline that close the turn. Text that the template strips cannot count.

A template may add other text to a turn: a reminder, the start of the system prompt, the header of the next turn. So
the text of each answer must match what the template prints for it in a plain conversation (see `plain`), which
contains only the answer and marks. Also, probe words inserted into the answers must appear in the spans only. In any
doubt, refuse the row.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemotron_data.chat.plain import (
    ANSWER,
    ASKED,
    CALLING,
    MARK,
    MARKS,
    QUESTION,
    SAID,
    THINKING,
    THOUGHT,
    TOOL,
    Form,
    fits,
    form_of,
    has_own_words,
    plain_around,
    same_but_for_numbers,
    says_something,
    shows_plain_call,
    with_word,
    words_of,
)
from nemotron_data.chat.rows import Message, counts
from nemotron_data.chat.turns import Span, Trace
from nemotron_shared.errors import UserError

ADD_MARKS = "put {% generation %} ... {% endgeneration %} around what the assistant writes in the chat template"
END_MARKS = re.compile(rf"(?:\s|{MARK})*")

Tracer = Callable[[Sequence[Message], Any, bool, dict[str, Any]], Trace]
"""Render messages with tools, optionally with the generation prompt, with template options."""


@dataclass(frozen=True, slots=True)
class Frame:
    r"""What a template prints before and after a plain answer.

    Attributes:
        header: text before it, such as "<|im_start|>assistant\n"; empty if prompts end with the question.
        closed_later: the end mark of an answer, if the template prints it only with the next question.
        tools: tools to render plain conversations with; None except for templates that require tools.
        forms: forms of an answer in plain conversations.
        ends_calls: only marks follow a call in the turn.
    """

    header: str
    closed_later: str
    tools: list[dict[str, Any]] | None
    forms: frozenset[Form] = frozenset()
    ends_calls: bool = True


class AnswerFinder:
    """Find the answers in conversations rendered with one template."""

    def __init__(self, trace: Tracer, eos_token: str) -> None:
        self._trace = trace
        self._eos_token = eos_token
        self._usual: Frame | None = None

    def find(self, messages: Sequence[Message], tools: Any, options: dict[str, Any]) -> tuple[str, list[Span]]:
        """Return the text and the [start, end) assistant spans, sorted and disjoint."""
        frame = None if options else self._usual
        if frame is None:
            frame = self._known_frame(bool(tools), options)
            self._usual = self._usual if options else frame
        trace = self._trace(messages, tools, False, options)
        self._check_place(messages, tools, options)
        spans: list[Span] = []
        for i, message in enumerate(messages):
            if not _is_answer(message):
                continue
            answer = self._answer(i, frame, trace, messages, tools, options)
            if not self._is_its_own(i, message, _text(trace, answer), frame, options):
                raise UserError(f"the chat template puts more than the answer into its turn: turn {i}", ADD_MARKS)
            for start, end in answer if counts(message) else ():
                if start < end and spans and spans[-1][1] == start:
                    spans[-1] = (spans[-1][0], end)
                elif start < end:
                    spans.append((start, end))
        return trace.text, spans

    def _answer(
        self, i: int, frame: Frame, trace: Trace, messages: Sequence[Message], tools: Any, options: dict[str, Any]
    ) -> list[Span]:
        """Spans of turn i: without its header, with its end mark."""
        if not trace.parts[i]:
            return []
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
        # a trailing space often shares a token with the next word, which the assistant did not write
        start, end = answer[-1]
        answer[-1] = start, start + len(trace.text[start:end].rstrip(" "))
        return answer

    def _is_its_own(self, i: int, message: Message, text: str, frame: Frame, options: dict[str, Any]) -> bool:
        """Check that a turn is what the template prints for this answer in a plain conversation."""
        if says_something(message) and not text.strip():
            raise UserError(f"the chat template does not show an answer: turn {i}", ADD_MARKS)
        if not message.get("tool_calls"):
            said = words_of(message)
            if any(fits(text, form, said) for form in frame.forms):
                return True
        elif not frame.ends_calls:
            return False
        for messages, at in plain_around(message):
            alone = self._alone(messages, at, frame, options)
            if alone is None or not (
                text == alone or (message.get("tool_calls") and same_but_for_numbers(text, alone))
            ):
                continue
            if not message.get("tool_calls") and not has_own_words(_without(text, frame.header), message):
                return False
            if not says_something(message):
                return True
            messages[at] = with_word(messages[at])
            if SAID in (self._alone(messages, at, frame, options) or ""):
                return True
            raise UserError(f"the chat template does not show an answer: turn {i}", ADD_MARKS)
        return False

    def _alone(self, messages: list[Message], at: int, frame: Frame, options: dict[str, Any]) -> str | None:
        """Text of an answer in a plain conversation; None if the template refuses it."""
        try:
            trace = self._trace(messages, frame.tools, False, options)
            return _text(trace, self._answer(at, frame, trace, messages, frame.tools, options))
        except UserError:
            return None

    def _known_frame(self, with_tools: bool, options: dict[str, Any]) -> Frame:
        """The frame and the forms of answers, computed once."""
        try:
            frame = self._frame(None, options)
        except UserError:
            if not with_tools:
                raise
            frame = self._frame([TOOL], options)  # some templates require tools
        plain, thinking = (self._forms(answer, frame, options) for answer in (ANSWER, THINKING))
        if not all(self._only_marks(form, frame) for form in plain):
            raise UserError("the chat template puts words of its own into answers", ADD_MARKS)
        forms = frozenset([*plain, *(form for form in thinking if self._only_marks(form, frame))])
        calls = [self._alone(*plain, frame, options) for plain in plain_around(CALLING)]
        ends_calls = all(shows_plain_call(_without(text, frame.header)) for text in calls if text is not None)
        return replace(frame, forms=forms, ends_calls=ends_calls)

    def _forms(self, answer: Message, frame: Frame, options: dict[str, Any]) -> set[Form]:
        """Forms of an answer in plain conversations."""
        texts = [self._alone(messages, at, frame, options) for messages, at in plain_around(answer)]
        return {form_of(text) for text in texts if text is not None and SAID in text}

    def _only_marks(self, form: Form, frame: Frame) -> bool:
        """Whether the form has only marks besides the message's own text, and ends with an end mark."""
        *leads, end = form[::2]
        return self._is_end(end) and all(MARKS.fullmatch(_without(lead, frame.header)) for lead in leads)

    def _frame(self, tools: Any, options: dict[str, Any]) -> Frame:
        """Derive the frame from two plain questions with answers, and from the prompt for the second one."""
        told = self._trace([QUESTION, ANSWER, QUESTION, ANSWER], tools, False, options)
        asked = self._trace([QUESTION, ANSWER, QUESTION], tools, True, options)
        answers = [told.of(1).split(SAID), told.of(3).split(SAID)]
        if any(len(answer) != 2 for answer in answers) or (told.text.count(ASKED), asked.text.count(ASKED)) != (2, 2):
            raise UserError("the chat template does not go through the messages one by one", ADD_MARKS)
        (lead, end), (last_lead, last_end) = answers
        first, second = told.text.index(ASKED), told.text.rindex(ASKED)

        # what the generation prompt adds to the question; some templates put it into the question's turn
        question = told.text[second : told.parts[3][0][0]].rstrip()
        prompt = asked.text[asked.text.rindex(ASKED) :]
        if not prompt.startswith(question):
            raise UserError("the chat template's prompt ends the question in another way", ADD_MARKS)
        prompt = _before_thought(prompt.removeprefix(question)).lstrip()
        leads = [_before_thought(lead).lstrip(), _before_thought(last_lead).lstrip()]
        header = common_start(*leads)
        # a prompt may continue with words that only some answers begin with
        goes_on = header and leads == [header, header] and prompt.startswith(header.rstrip())
        header = common_start(header, prompt) if prompt else header
        if not header.startswith(prompt.rstrip()) and not goes_on:
            raise UserError("the chat template's answers do not begin as its prompts end", ADD_MARKS)

        # the text before the first and before the second question should be the same
        opening = told.of(0).partition(ASKED)[0] if ASKED in told.of(0) else told.text[:first]
        second_opening = told.text[told.parts[1][-1][1] : second]
        opening, second_opening = (re.sub(r"\d", "0", text) for text in (opening, second_opening))  # "[Round 2]"
        same = len(common_start(opening[::-1], second_opening[::-1]))
        later = second_opening[: len(second_opening) - same]
        if later.strip() and not (same and self._is_end(later)):
            raise UserError("the chat template opens later questions in another way", ADD_MARKS)
        # an answer before another turn may end with another mark than the last one, but not with the start of that turn
        shared = common_start(end.rstrip()[::-1], told.text[:first].rstrip()[::-1])[::-1]
        moved = shared != self._eos_token and re.search(MARK, shared) is not None
        longer = last_end.strip() != "" and end.strip() != last_end.strip() and end.strip().startswith(last_end.strip())
        # "</a><u>", if only the very first question has another opening mark
        several = len(re.findall(MARK, end)) > 1 and opening.strip() != "" and not second_opening.strip()
        if moved or longer or several or not (self._is_end(end) and self._is_end(last_end)):
            raise UserError("the chat template puts more than an answer into the answer's turn", ADD_MARKS)
        return Frame(header if header.strip() else "", later if later.strip() else "", tools)

    def _is_end(self, text: str) -> bool:
        return END_MARKS.fullmatch(text.replace(self._eos_token, " ") if self._eos_token else text) is not None

    def _end_mark(self, i: int, frame: Frame, trace: Trace) -> list[Span]:
        """End mark of turn i, if the template prints it after the turn."""
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
            return []  # templates that always print a generation prompt
        raise UserError(f"the chat template ends with text of its own: {rest.strip()[:40]}", ADD_MARKS)

    def _check_place(self, messages: Sequence[Message], tools: Any, options: dict[str, Any]) -> None:
        """Check that probe words inserted into the answers appear in the answers only."""
        changed = [
            with_word(message) if says_something(message) and _is_answer(message) else message for message in messages
        ]
        trace = self._trace(changed, tools, False, options)
        said = [i for i, message in enumerate(changed) if _is_answer(message)]
        if sum(trace.of(i).count(SAID) for i in said) != trace.text.count(SAID):
            raise UserError("the chat template shows answers outside of their turns", ADD_MARKS)


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"


def common_start(one: str, other: str) -> str:
    """Common prefix."""
    differ = (at for at, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    return one[: next(differ, min(len(one), len(other)))]


def _other_header(i: int, trace: Trace, asked: Trace, messages: Sequence[Message]) -> int:
    """Number of characters of turn i that `asked`, the prompt for it, ends with.

    After a tool message many templates continue the assistant's turn, some after a mark.
    """
    prompt = asked.text[asked.end :]
    last = next((j for j, parts in enumerate(asked.parts) if parts and parts[-1][1] == asked.end), i)
    if last < i and messages[last].get("role") != "assistant":
        # the prompt may be part of the last message's turn, which is then longer than in the whole conversation
        known, now = trace.of(last), asked.of(last)
        prompt = now.removeprefix(known) + prompt
    prompt = _before_thought(prompt).rstrip()
    if not trace.text.startswith(prompt, trace.parts[i][0][0]):
        raise UserError(f"the chat template begins an answer unlike its prompt: turn {i}", ADD_MARKS)
    return len(prompt)


def _before_thought(text: str) -> str:
    thought = THOUGHT.search(text)
    return text[: thought.start()] if thought else text


def _without(text: str, header: str) -> str:
    """Remove headers from a text: some templates put reasoning into a separate turn."""
    return text.replace(header.strip(), " ") if header else text


def _text(trace: Trace, spans: Sequence[Span]) -> str:
    return "".join(trace.text[start:end] for start, end in spans)
