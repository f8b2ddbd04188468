r"""Plain conversations, in which nothing but an answer of its own can come out in its turn: no system prompt, no tools.

    user  Zquestionz
    assistant  the answer in question
    user  Zquestionz
    assistant  Zanswerz

What a template gives for an answer in its conversation has to be what it gives for it in one of these. Other people's
texts, the template's reminders, the message's other fields and the time of day are in the one and not in the other.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nemotron_data.chat.rows import REASONING_NAMES, Message

ASKED, SAID, MUSED = "Zquestionz", "Zanswerz", "Zreasonz"
QUESTION, ANSWER = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
THINKING = ANSWER | {"reasoning_content": MUSED}
CALLED = "Zcallz", "Zkeyz", "Zvaluez", "Zcalled1z"
CALLING = ANSWER | {"tool_calls": [
    {"id": CALLED[3], "type": "function", "function": {"name": CALLED[0], "arguments": {CALLED[1]: CALLED[2]}}}
]}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "Ztoolz", "description": "Zhelpz", "parameters": {
    "type": "object", "properties": {"Zargumentz": {"type": "string", "description": "Zmeaningz"}}}}}  # fmt: skip
"""For templates that are for tools alone."""
OF_ANSWERS = {"role", "content", "tool_calls", *REASONING_NAMES}
AFTER: tuple[tuple[Message, ...], ...] = ((), (QUESTION, ANSWER), (ANSWER,))
"""An answer may be the last one, before another question, or before another answer to the same one."""

# <think>, </think>, <seed:think>, [THINK], <|START_THINKING|>, <|channel>thought; not <no_think> or <|user_think|>
THOUGHT = re.compile(
    r"<\|channel>thought|[<\[◁]/?\|?/?(?:\w+:)?(?:(?:start|end|begin)_(?:of_)?)?(?:think|thinking|thought)\|?[>\]▷]",
    re.IGNORECASE,
)
OPENED_THOUGHT = re.compile(rf"(?:(?:{THOUGHT.pattern})\s*)+\Z", re.IGNORECASE)
MARK = r"<[^<>\s]+>|\[/?\|?[A-Za-z_]+\|?\]|◁[^◁▷\s]+▷"
STATED = rf"{MARK}|(?<=<\|channel\|>)\w+|(?<=<\|channel>)\w+|to=\w+(?=<\|message\|>)"
MARKS = re.compile(rf"(?:\s|{STATED})*")
"""What may stand in a turn besides what the message says; <|channel|>final<|message|> is of it."""
AFTER_CALLS = re.compile(rf"(?:{MARK}|[\W_])*+")
SLOTS = re.compile(f"({SAID}|{MUSED})")

Form = tuple[str, ...]
"""An answer's text with its thought and its words left open: ("<think>", MUSED, "</think>", SAID, "<|im_end|>")."""


def plain_around(message: Message) -> Iterator[tuple[list[Message], int]]:
    """Plain conversations around an answer, and which message of each it is; its other fields are left out."""
    answer = {name: value for name, value in message.items() if name in OF_ANSWERS}
    answers = [_answer_of(call) for call in message.get("tool_calls") or []]
    for after in AFTER:
        yield [QUESTION, answer, *answers, *after], 1
    if answers:
        yield [QUESTION, answer, *answers, ANSWER, QUESTION, ANSWER], 1
        yield [QUESTION, answer], 1


def _answer_of(call: Any) -> Message:
    """What a tool says to a call."""
    known = call if isinstance(call, dict) else {}
    function = known.get("function")
    function = function if isinstance(function, dict) else known
    names = {"tool_call_id": known.get("id"), "name": function.get("name")}
    return {"role": "tool", "content": ASKED} | {name: value for name, value in names.items() if value is not None}


def form_of(text: str) -> Form:
    """The form of a text in which SAID and MUSED stand for what is said."""
    return tuple(piece.strip() for piece in SLOTS.split(text))


def fits(text: str, form: Form, said: Mapping[str, str]) -> bool:
    """Whether a text is this form with these words, whatever the white space between."""
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
    """Whether there are only marks before what is said and behind the last part of the call."""
    said, called = text.find(SAID), max(text.rfind(word) for word in CALLED)
    begins = said < 0 or said > called >= 0 or MARKS.fullmatch(text[:said])
    last = max(called, said)
    return bool(begins) and AFTER_CALLS.fullmatch(re.sub(r"^\w+", "", text[last:]) if last >= 0 else "") is not None


def has_own_words(text: str, message: Message) -> bool:
    """Whether there is no word in a text, besides marks, that the message does not have."""
    own = " ".join(str(message.get(name)) for name in ("content", *REASONING_NAMES))
    return all(word in own for word in re.findall(r"\w+", re.sub(STATED, " ", text)))


def words_of(message: Message) -> dict[str, str]:
    """What fills the places of a form."""
    thought = next((message[name] for name in REASONING_NAMES if message.get(name) is not None), "")
    return {SAID: str(message.get("content") or "").strip(), MUSED: str(thought).strip()}


def with_word(message: Message) -> Message:
    """A word before the last character of what is said, or the tag that it ends with: templates look at both ends."""
    text = message["content"]
    end = len(text.rstrip())
    tag = text.rfind("<", 0, end) if text[end - 1] == ">" else -1
    at = tag if tag >= 0 else end - 1
    return {**message, "content": text[:at] + SAID + text[at:]}


def same_but_for_numbers(one: str, other: str) -> bool:
    """Some templates count the calls of a whole conversation."""
    return one == other or re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


def says_something(message: Message) -> bool:
    """Whether there is text that has to come out; with a call some templates leave it out."""
    return bool(str(message.get("content") or "").strip()) and not message.get("tool_calls")
