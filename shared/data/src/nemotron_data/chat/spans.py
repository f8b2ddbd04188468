r"""Find what the assistant wrote in the output of a chat template without {% generation %}.

    <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think></think>4<|im_end|>\n
                                                            ~~~~~~~~~~~~~~~~~~~~~~~~~

1. Whose text is it? Each turn of a template's loop over the messages is about one message. Marks are compiled into such
   loops. They print nothing, and record which message the text after them belongs to (`TurnMarks`, `Trace`).
2. What of an answer's turn counts? The header that also ends the prompt is removed. Everything else counts, as in
   templates annotated by hand: reasoning (even if the prompt already opens <think>), tool calls, and the end mark and
   newline that close the turn. Text that the template strips cannot count (`AnswerFinder`).
3. Is it the answer's alone? A template may add a reminder, the start of the system prompt, the header of the next turn.
   So the text of each answer must match what the template prints for it in a plain conversation: no system prompt, no
   tools. Also, probe words inserted into the answers must appear in the spans only. In any doubt, refuse the row.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

from nemotron_data.chat.loss_marks import counts
from nemotron_data.chat.rows import REASONING_NAMES, Message
from nemotron_shared.system.errors import UserError

Span = tuple[int, int]

# Put around the number of a mark whose position is not known; reserved noncharacters, never part of a text.
OPEN, CLOSE = "\ufdd2", "\ufdd3"
NUMBERED = re.compile(f"{OPEN}([0-9]+){CLOSE}")

PRINTING: tuple[type[nodes.Node], ...] = (nodes.Output, nodes.CallBlock)


class Mark(str):
    """An empty piece of output. It keeps this type only if it goes straight into the whole text."""

    __slots__ = ()

    def __str__(self) -> Self:
        return self  # Jinja calls str() on everything it prints


class TurnMarks(Extension):
    """Marks recorded while a template runs.

    `owners` has, for each mark, the message that the text after it belongs to.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.owners: list[int | None] = []
        self._numbers: dict[int, int] = {}
        self._answers: set[int] = set()
        self._within: list[tuple[int, int]] = []
        self.visible = False
        """Print the numbers of the marks into the text?"""

    def add_to(self, tree: nodes.Template) -> None:
        """Add marks to all loops of a template."""
        _MarkLoops(self).visit(tree)
        tree.set_environment(self.environment)

    def watch(self, messages: Sequence[dict[str, Any]]) -> None:
        """Start tracking these messages, which must be distinct objects."""
        self.owners, self._within = [], []
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        self._answers = {number for number, message in enumerate(messages) if message.get("role") == "assistant"}

    def entered(self, loop: int, value: object) -> str:
        """Record that the next turn of a loop is about `value`."""
        number = self._numbers.get(id(value))
        if number is None:
            return ""  # a tool, a call, a number
        self._leave(loop)
        self._within.append((loop, number))
        return self._mark()

    def left(self, loop: int) -> str:
        """Record the end of a loop; the text after it belongs to the message of the enclosing loop again."""
        return self._mark() if self._leave(loop) else ""

    def _leave(self, loop: int) -> bool:
        at = next((at for at, (known, _) in enumerate(self._within) if known == loop), None)
        if at is not None:
            del self._within[at:]
        return at is not None

    def _mark(self) -> str:
        # In nested loops, text counts as an answer's only if it is about answers in both: a tool's reply may be printed
        # in the turn of its call, and a call looked up in the turn of its reply.
        within = [number for _, number in self._within]
        others = [number for number in within if number not in self._answers]
        self.owners.append(next(iter([*others[-1:], *within[-1:]]), None))
        return f"{OPEN}{len(self.owners) - 1}{CLOSE}" if self.visible else Mark()


class _MarkLoops(NodeTransformer):
    """Insert a call of `entered` at the beginning of each loop, and one of `left` after it."""

    def __init__(self, marks: TurnMarks) -> None:
        self._marks = marks
        self._loops: list[tuple[int, str]] = []
        self._count = 0

    def visit_For(self, loop: nodes.For) -> list[nodes.Node]:
        """{% for message in messages %}"""
        if not isinstance(loop.target, nodes.Name) or not any(map(loop.find, PRINTING)):
            self.generic_visit(loop)  # a loop that prints nothing, only searches
            return [loop]
        self._count += 1
        number = self._count
        self._loops.append((number, loop.target.name))
        self.generic_visit(loop)
        self._loops.pop()
        loop.body.insert(0, self._call("entered", number, loop))
        return [loop, self._call("left", number, loop)]

    def visit_Assign(self, assign: nodes.Assign) -> list[nodes.Node]:
        """{% set message = messages[i] %} in a loop that counts i."""
        got, target = assign.node, assign.target
        if isinstance(target, nodes.Name) and isinstance(got, nodes.Getitem) and isinstance(got.arg, nodes.Name):
            for number, counter in reversed(self._loops):
                if counter == got.arg.name:
                    return [assign, self._call("entered", number, assign)]
        return [assign]

    def _call(self, method: str, loop: int, about: nodes.For | nodes.Assign) -> nodes.Node:
        arguments: list[nodes.Expr] = [nodes.Const(loop)]
        if method == "entered":
            assert isinstance(about.target, nodes.Name)
            arguments.append(nodes.Name(about.target.name, "load"))
        return nodes.Output([self._marks.call_method(method, arguments)]).set_lineno(about.lineno)


@dataclass(frozen=True, slots=True)
class Trace:
    """A rendered conversation, and which parts of it the loops printed for each message.

    Attributes:
        parts: by message; several if a loop over other messages runs inside its turn, empty if nothing was printed.
        end: end of the last part; the text after it belongs to the conversation as a whole.
    """

    text: str
    parts: list[list[Span]] = field(default_factory=list)
    end: int = 0

    def of(self, message: int) -> str:
        """Text of one message."""
        return "".join(self.text[start:end] for start, end in self.parts[message])


def trace_of(pieces: Sequence[str], owners: Sequence[int | None], messages: Sequence[dict[str, Any]]) -> Trace:
    """Parts of each message from the pieces between marks; piece k + 1 follows mark k."""
    parts: list[list[Span]] = [[] for _ in messages]
    position = last = 0
    for owner, piece in zip([None, *owners], pieces, strict=True):
        end = position + len(piece)
        if owner is not None and piece:
            if parts[owner] and parts[owner][-1][1] == position:
                parts[owner][-1] = (parts[owner][-1][0], end)
            else:
                parts[owner].append((position, end))
            last = end
        position = end
    if last < position and messages and not parts[-1] and messages[-1].get("role") == "assistant":
        parts[-1], last = [(last, position)], position  # some loops end before the last answer
    return Trace("".join(pieces), parts, last)


def split_at_marks(pieces: Sequence[str]) -> list[str]:
    """Split text at marks that went straight into it."""
    found: list[list[str]] = [[]]
    for piece in pieces:
        if type(piece) is Mark:
            found.append([])
        else:
            found[-1].append(piece)
    return ["".join(texts) for texts in found]


def split_at_numbers(marked: str, marks: int) -> list[str] | None:
    """Split text at visible marks; None unless each of them is there, in order."""
    pieces = NUMBERED.split(marked)
    return pieces[::2] if pieces[1::2] == [str(number) for number in range(marks)] else None


ASKED, SAID, MUSED = "Zquestionz", "Zanswerz", "Zreasonz"
QUESTION, ANSWER = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
THINKING = ANSWER | {"reasoning_content": MUSED}
CALLED = "Zcallz", "Zkeyz", "Zvaluez", "Zcalled1z"
CALLING = ANSWER | {"tool_calls": [
    {"id": CALLED[3], "type": "function", "function": {"name": CALLED[0], "arguments": {CALLED[1]: CALLED[2]}}}
]}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "Ztoolz", "description": "Zhelpz", "parameters": {
    "type": "object", "properties": {"Zargumentz": {"type": "string", "description": "Zmeaningz"}}}}}  # fmt: skip
"""Tool for templates that require tools."""
OF_ANSWERS = {"role", "content", "tool_calls", *REASONING_NAMES}
AFTER: tuple[tuple[Message, ...], ...] = ((), (QUESTION, ANSWER), (ANSWER,))
"""What may follow an answer: nothing, another question, or another answer to the same one."""

# <think>, </think>, <seed:think>, [THINK], <|START_THINKING|>, <|channel>thought; not <no_think> or <|user_think|>
THOUGHT = re.compile(
    r"<\|channel>thought|[<\[◁]/?\|?/?(?:\w+:)?(?:(?:start|end|begin)_(?:of_)?)?(?:think|thinking|thought)\|?[>\]▷]",
    re.IGNORECASE,
)
OPENED_THOUGHT = re.compile(rf"(?:(?:{THOUGHT.pattern})\s*)+\Z", re.IGNORECASE)
MARK = r"<[^<>\s]+>|\[/?\|?[A-Za-z_]+\|?\]|◁[^◁▷\s]+▷"
STATED = rf"{MARK}|(?<=<\|channel\|>)\w+|(?<=<\|channel>)\w+|to=\w+(?=<\|message\|>)"
MARKS = re.compile(rf"(?:\s|{STATED})*")
"""What a turn may contain besides the message's own text, including <|channel|>final<|message|>."""
AFTER_CALLS = re.compile(rf"(?:{MARK}|[\W_])*+")
SLOTS = re.compile(f"({SAID}|{MUSED})")

Form = tuple[str, ...]
"""Text of an answer with placeholders for reasoning and words: ("<think>", MUSED, "</think>", SAID, "<|im_end|>")."""


def plain_around(message: Message) -> Iterator[tuple[list[Message], int]]:
    """Plain conversations around an answer without its other fields, and the index of the answer in each."""
    answer = {name: value for name, value in message.items() if name in OF_ANSWERS}
    answers = [_answer_of(call) for call in message.get("tool_calls") or []]
    for after in AFTER:
        yield [QUESTION, answer, *answers, *after], 1
    if answers:
        yield [QUESTION, answer, *answers, ANSWER, QUESTION, ANSWER], 1
        yield [QUESTION, answer], 1


def _answer_of(call: Any) -> Message:
    """A tool's reply to a call."""
    known = call if isinstance(call, dict) else {}
    function = known.get("function")
    function = function if isinstance(function, dict) else known
    names = {"tool_call_id": known.get("id"), "name": function.get("name")}
    return {"role": "tool", "content": ASKED} | {name: value for name, value in names.items() if value is not None}


def fits(text: str, form: Form, said: Mapping[str, str]) -> bool:
    """Whether a text is this form filled with these words, ignoring white space around them."""
    position = 0
    for piece in form:
        expected = said.get(piece, piece)
        while text[position : position + 1].isspace():
            position += 1
        if not text.startswith(expected, position):
            return False
        position += len(expected)
    return not text[position:].strip()


def shows_plain_call(text: str) -> bool:
    """Whether only marks stand before the words and after the last part of the call."""
    said, called = text.find(SAID), max(text.rfind(word) for word in CALLED)
    begins = said < 0 or said > called >= 0 or MARKS.fullmatch(text[:said])
    last = max(called, said)
    return bool(begins) and AFTER_CALLS.fullmatch(re.sub(r"^\w+", "", text[last:]) if last >= 0 else "") is not None


def has_own_words(text: str, message: Message) -> bool:
    """Whether all words of a text, besides marks, are the message's own."""
    own = " ".join(str(message.get(name)) for name in ("content", *REASONING_NAMES))
    return all(word in own for word in re.findall(r"\w+", re.sub(STATED, " ", text)))


def words_of(message: Message) -> dict[str, str]:
    """Words for the placeholders of a form."""
    thought = next((message[name] for name in REASONING_NAMES if message.get(name) is not None), "")
    return {SAID: str(message.get("content") or "").strip(), MUSED: str(thought).strip()}


def with_word(message: Message) -> Message:
    """Insert a word before the last character of the text, or before its final tag: templates inspect both ends."""
    text = message["content"]
    end = len(text.rstrip())
    tag = text.rfind("<", 0, end) if text[end - 1] == ">" else -1
    at = tag if tag >= 0 else end - 1
    return {**message, "content": text[:at] + SAID + text[at:]}


def same_but_for_numbers(one: str, other: str) -> bool:
    """Compare, ignoring numbers: some templates number the calls of a conversation."""
    return one == other or re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


def says_something(message: Message) -> bool:
    """Whether the message has text that must be rendered; some templates omit it next to a call."""
    return bool(str(message.get("content") or "").strip()) and not message.get("tool_calls")


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
            raise UserError("the chat template adds its own words to answers", ADD_MARKS)
        forms = frozenset([*plain, *(form for form in thinking if self._only_marks(form, frame))])
        calls = [self._alone(*plain, frame, options) for plain in plain_around(CALLING)]
        ends_calls = all(shows_plain_call(_without(text, frame.header)) for text in calls if text is not None)
        return replace(frame, forms=forms, ends_calls=ends_calls)

    def _forms(self, answer: Message, frame: Frame, options: dict[str, Any]) -> set[Form]:
        """Forms of an answer in plain conversations."""
        texts = [self._alone(messages, at, frame, options) for messages, at in plain_around(answer)]
        return {tuple(map(str.strip, SLOTS.split(text))) for text in texts if text is not None and SAID in text}

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
        raise UserError(f"the chat template ends with its own text: {rest.strip()[:40]}", ADD_MARKS)

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
