r"""Plain conversations: no system prompt, no tools, so that a turn can contain only its own answer.

    user  Zquestionz
    assistant  the answer in question
    user  Zquestionz
    assistant  Zanswerz

What a template prints for an answer must match what it prints for the same answer in one of these. Text from other
messages, reminders, extra message fields and the current time would appear in only one of the two.
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


def form_of(text: str) -> Form:
    """Form of a text that contains SAID and MUSED."""
    return tuple(piece.strip() for piece in SLOTS.split(text))


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
