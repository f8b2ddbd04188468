"""What a chat template does with a conversation: the parts that it does not show, and the token that ends answers.

    hidden = Hidden(template)
    hidden.of(messages, tools)      # ("tools", "tool calls with their arguments")
    "...<|im_start|>assistant\\nZanswerz<|im_end|>\\n"   ->   EndToken(5, "<|im_end|>")

Checks the skeleton of a conversation instead of its text: the same turns, with a unique word in place of each text. A
short text may appear elsewhere in the rendered conversation by chance; a unique word cannot. All conversations with the
same skeleton share one cached result. The end token must be a stop token wherever the model is served.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from nemotron_data.chat.confined import Template, open_template
from nemotron_data.chat.loss_marks import counts
from nemotron_data.chat.rows import REASONING_NAMES, Message
from nemotron_data.chat.spans import ANSWER, ASKED, QUESTION, SAID, TOOL
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.system.errors import UserError

TOOLS, CALLS, RESULTS, SYSTEM, REASONING, NAMES = KINDS = (
    "tools",
    "tool calls with their arguments",
    "tool results",
    "system prompts",
    "reasoning",
    "names of speakers",
)
NO_LOSS = frozenset({REASONING, NAMES})
"""Kinds without which a conversation still makes sense; many templates leave them out."""
OF_PROMPTS = frozenset(KINDS) - {REASONING}
"""Kinds that a prompt must show. Earlier reasoning may be missing, as the model itself does not see it again."""
THOUGHT_IN_TEXT = re.compile(r"<think>(?!\s*</think>).*?</think>", re.DOTALL)


class Turn(NamedTuple):
    """A turn of a skeleton.

    Attributes:
        said: whether it has words.
        calls: for each call, whether it has arguments.
        thought: where its reasoning is; empty, too, if the turn does not count, because nothing is lost with it.
        named: whether it says who speaks. A tool's result always names the tool.
    """

    role: str
    said: bool
    calls: tuple[bool, ...] = ()
    thought: str = ""
    named: bool = False

    @property
    def is_plain(self) -> bool:
        """Only words of a user or the assistant, which every template shows."""
        return self.role in ("user", "assistant") and not self.calls and not self.thought and not self.named


Skeleton = tuple[tuple[Turn, ...], bool]
"""Turns, and whether there are tools."""


class Hidden:
    """Cache of what a template does not show, by skeleton."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._known: dict[tuple[Skeleton, bool], tuple[str, ...]] = {}

    def of(self, messages: Sequence[Message], tools: Any, *, prompt: bool = False) -> tuple[str, ...]:
        """Those of `KINDS` that the conversation has and the template hides.

        Args:
            prompt: the conversation ends with the question, and the assistant answers next.
        """
        skeleton = tuple(map(_turn_of, messages)), bool(tools)
        if not skeleton[1] and all(turn.is_plain for turn in skeleton[0]):
            return ()
        if (skeleton, prompt) not in self._known:
            self._known[skeleton, prompt] = self._hidden(skeleton, prompt)
        return self._known[skeleton, prompt]

    def _hidden(self, skeleton: Skeleton, prompt: bool) -> tuple[str, ...]:
        messages, tools, words = _worded(skeleton)
        try:
            text = self._template.render(messages, tools, prompt)
        except UserError:
            return ()  # the template needs more than a skeleton, so we cannot tell what it hides
        missing = {kind: [word for word in these if word not in text] for kind, these in words.items()}
        # many templates show only the last thoughts; fine-tuning splits conversations so that each of them is last
        lost = {kind for kind, these in missing.items() if these and (kind != REASONING or these == words[kind])}
        return tuple(kind for kind in KINDS if kind in lost and (not prompt or kind in OF_PROMPTS))


def told(hidden: Iterable[str]) -> str:
    """Message such as "the chat template shows no tools, no tool results"."""
    return "the chat template shows " + ", ".join(f"no {kind}" for kind in hidden)


def calls_untold(messages: Sequence[Message], tools: Any) -> bool:
    """Whether an answer calls a tool without a description or a system prompt that names it."""
    if tools:
        return False
    names = {
        str(call["function"].get("name"))
        for message in messages
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    }
    systems = " ".join(str(message.get("content")) for message in messages if message.get("role") == "system")
    return any(name not in systems for name in names)


def thought_of(message: Message) -> str:
    """Where an answer's reasoning is: "apart" in a separate field, "within" its text, or empty if it has none."""
    if any(str(message.get(name) or "").strip() for name in REASONING_NAMES):
        return "apart"
    return "within" if THOUGHT_IN_TEXT.search(str(message.get("content") or "")) else ""


def with_thought(message: Message, word: str) -> Message:
    """The answer with its reasoning replaced by a word."""
    if thought_of(message) == "within":
        return {**message, "content": THOUGHT_IN_TEXT.sub(f"<think>\n{word}\n</think>", message["content"], count=1)}
    return {name: word if name in REASONING_NAMES else value for name, value in message.items()}


def _turn_of(message: Message) -> Turn:
    role, content = str(message.get("role")), message.get("content")
    said = bool(str(content or "").strip())
    named = role != "tool" and bool(message.get("name"))
    if role != "assistant":
        return Turn(role, said, named=named)
    calls = message.get("tool_calls") or ()
    given = (call["function"].get("arguments") for call in calls if isinstance(call, dict) and "function" in call)
    return Turn(role, said, tuple(map(bool, given)), thought_of(message) if counts(message) else "", named)


def _worded(skeleton: Skeleton) -> tuple[list[Message], list[dict[str, Any]] | None, dict[str, list[str]]]:
    """Conversation for a skeleton, its tools, and the placeholder words by kind."""
    words: dict[str, list[str]] = {}
    open_calls: list[dict[str, Any]] = []
    count = 0

    def word(kind: str) -> str:
        nonlocal count
        count += 1
        words.setdefault(kind, []).append(f"Z{kind.replace(' ', '')}{count}z")
        return words[kind][-1]

    tools = None
    if skeleton[1]:
        schema = {"type": "object", "properties": {"Zkeyz": {"type": "string", "description": "Zmeaningz"}}}
        about = {"name": word(TOOLS), "description": "Zhelpz", "parameters": schema}
        tools = [{"type": "function", "function": about}]
    messages: list[Message] = []
    for turn in skeleton[0]:
        message: Message = {"role": turn.role, "content": ASKED if turn.said else ""}
        if turn.named:
            message["name"] = word(NAMES)
        if turn.role == "system" and turn.said:
            message["content"] = word(SYSTEM)
        elif turn.role == "tool":
            message["content"] = word(RESULTS) if turn.said else ""
            call = open_calls.pop(0) if open_calls else {"id": "call00000", "function": {"name": "Zcallz"}}
            message |= {"tool_call_id": call["id"], "name": call["function"]["name"]}
        elif turn.role == "assistant":
            message["content"] = SAID if turn.said else ""
            if turn.thought == "apart":
                message["reasoning_content"] = word(REASONING)
            elif turn.thought == "within":
                message["content"] = f"<think>\n{word(REASONING)}\n</think>\n\n{SAID}"
            for with_arguments in turn.calls:
                arguments = {"Zkeyz": word(CALLS)} if with_arguments else {}
                call = {"id": f"call{count:05d}", "type": "function",
                        "function": {"name": word(CALLS), "arguments": arguments}}  # fmt: skip
                open_calls.append(call)
                message.setdefault("tool_calls", []).append(call)
            if not turn.said and turn.calls:
                del message["content"]  # templates may show anything in its place
        messages.append(message)
    return messages, tools, words


class EndToken(NamedTuple):
    """A token that ends an answer."""

    id: int
    token: str


def learnt_end(source: str, label: str, tokenizer: TokenizerFolder) -> EndToken | None:
    """Token that is trained right after a plain answer; None if the template prints none or does not fit plain answers.

    Args:
        source: the template's Jinja source.
        label: name in error messages.

    Raises:
        UserError: an answer ends with text that is not a single token, so generation could not stop at it; or the
            template needs an eos_token, and the tokenizer names none.
    """
    learnt = _behind_an_answer(open_template(source, label, **tokenizer.special_texts()))
    eos = tokenizer.special_text("eos_token")
    if learnt:
        number = tokenizer.tokenizer.encode(learnt, add_special_tokens=False).ids[0]
        if tokenizer.is_named(number):
            return EndToken(number, str(tokenizer.tokenizer.id_to_token(number)))
        what = (
            f"{label}: answers end with '{learnt.split()[0]}', which is not a token of the tokenizer {tokenizer.path}"
        )
        what = f"{what}: no program could stop there"
        if learnt.split()[0] == eos:
            raise UserError(what, "name a token of its vocabulary as eos_token in tokenizer_config.json")
        own = f"a template whose answers end with '{eos}', " if eos else ""
        raise UserError(what, f"set data_prep.chat_template to {own}or to plain")
    if learnt == "" and eos is None and "eos_token" in source:
        what = f"{label}: answers end with the tokenizer's eos_token, and {tokenizer.path} names none"
        raise UserError(what, "name its token for the end of a text as eos_token in tokenizer_config.json")
    return None


def _behind_an_answer(template: Template) -> str | None:
    """Text after the words of an answer that counts in the loss; None if it cannot be determined."""
    for tools in (None, [TOOL]):  # some templates require tools
        with suppress(UserError):
            text, spans = template.render_with_spans([QUESTION, ANSWER], tools)
            if SAID in text and spans:
                return text[text.rindex(SAID) + len(SAID) : spans[-1][1]].strip()
    return None
