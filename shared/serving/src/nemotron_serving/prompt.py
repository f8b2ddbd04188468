"""From a conversation to token ids, in which nothing that somebody wrote is a control token.

A user who writes `<|im_end|>` gets the ids of those ten characters; only the chat template itself ends a turn.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.template import default_template
from nemotron_data.chat.thought import CLOSE, OPEN, opens_thought
from nemotron_data.tokenizers.limits import panics_told
from nemotron_shared.errors import UserError

ROLES = ("system", "user", "assistant", "tool")
REASONING = (OPEN, CLOSE)


@dataclass(frozen=True)
class Prompt:
    """Token ids, and whether the template has begun a thought already that the answer goes on with."""

    ids: list[int]
    in_thought: bool = False


class Prompter:
    """Turns conversations and texts into ids, for one model.

    Args:
        context: tokens of its longest prompt; None knows no limit.
    """

    def __init__(self, tokenizer: Any, context: int | None = None) -> None:
        self.tokenizer = tokenizer
        self._context = context
        self._longest = max(map(len, tokenizer.get_vocab()))
        source = default_template(
            getattr(tokenizer, "chat_template", None), getattr(tokenizer, "name_or_path", "the model")
        )
        names = {role: getattr(tokenizer, role, None) for role in ("bos_token", "eos_token", "pad_token", "unk_token")}
        self._label = f"the chat template of {getattr(tokenizer, 'name_or_path', 'the model')}"
        self.template = open_template(source, self._label, **names) if source is not None else None
        known = sorted((token.content for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, known))) if known else None
        nonce = secrets.token_hex(8)
        self._mark = f"\ue000{nonce}:%d\ue001"
        self._marks = re.compile(rf"\ue000{nonce}:(\d+)\ue001")

    def text(self, text: str, *, control: bool = False) -> Prompt:
        """Plain text to continue.

        Args:
            control: control tokens in it are meant as such.

        Raises:
            UserError: it is far too long for the model, or no text, or the tokenizer fails at it.
        """
        self._require_room(text)
        _require_characters("the text", text)
        return Prompt(self._encoded(text) if control or self._control is None else self._protected(text))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] | None = None, **options: Any
    ) -> Prompt:
        """A conversation that the assistant answers next; `options` reach the template by their names.

        Raises:
            UserError: the model has no template, or it refuses the conversation, or makes no text of it.
        """
        if self.template is None:
            raise UserError("this model has no chat template", "give it text to continue, or another model")
        for number, message in enumerate(messages):
            _require_characters(f"messages[{number}]", message)
        held: list[str] = []
        safe = [self._held(message, held, message.get("role") == "assistant") for message in messages]
        safe_tools = None if tools is None else [self._held(tool, held, False) for tool in tools]
        text = self.template.render(safe, safe_tools, add_generation_prompt=True, **options)
        self._require_text(text)
        self._require_room(text)
        ids: list[int] = []
        for place, part in enumerate(self._marks.split(text)):
            ids += self._apart(held[int(part)]) if place % 2 else self._encoded(part)
        return Prompt(ids, opens_thought(text))

    def _require_text(self, text: str) -> None:
        """Refuse what the model or the tokenizer would fail at, which would be blamed for it."""
        wrong = "no text for this conversation" if not text else None
        try:
            text.encode()
        except UnicodeEncodeError as error:
            wrong = f"a lone surrogate, which is no character, at position {error.start} of its text"
        if wrong:
            raise UserError(f"{self._label} makes {wrong}", "correct the template, or the conversation")

    def _require_room(self, text: str) -> None:
        """Refuse what the longest tokens could not hold: to tokenize megabytes takes seconds and gigabytes."""
        if self._context is not None and len(text) > self._context * self._longest:
            what = f"the prompt has {len(text)} characters; the model's context is {self._context} tokens"
            raise UserError(what, "ask with less text")

    def _held(self, value: Any, held: list[str], by_assistant: bool) -> Any:
        """The same with marks in place of what the tokenizer would take for a control token."""
        if isinstance(value, str) and self._control is not None:

            def mark(found: re.Match[str]) -> str:
                if by_assistant and found[0] in REASONING:  # the template looks for them
                    return found[0]
                held.append(found[0])
                return self._mark % (len(held) - 1)

            return self._control.sub(mark, value)
        if isinstance(value, Mapping):
            return {self._held(key, held, by_assistant): self._held(one, held, by_assistant)
                    for key, one in value.items()}  # fmt: skip
        if isinstance(value, list | tuple):
            return [self._held(one, held, by_assistant) for one in value]
        return value

    def _protected(self, text: str) -> list[int]:
        assert self._control is not None
        ids, end = [], 0
        for found in self._control.finditer(text):
            ids += self._encoded(text[end : found.start()]) + self._apart(found[0])
            end = found.end()
        return ids + self._encoded(text[end:])

    def _apart(self, token: str) -> list[int]:
        """A control token's characters: without its first one, it is none."""
        return [number for part in (token[0], token[1:]) for number in self._encoded(part)]

    def _encoded(self, text: str) -> list[int]:
        with panics_told(text):
            return self.tokenizer(text, add_special_tokens=False).input_ids if text else []


def _require_characters(place: str, value: Any) -> None:
    """Refuse what JSON can write and no text can hold, for which the template or the tokenizer would be blamed."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        what = f"{place} has {error.object[error.start]!r}, a lone surrogate, which is no character"
        raise UserError(what, "correct it: it was cut within a character, or read in a wrong encoding") from error


def plain_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates read them: content as one text, arguments of calls as objects.

    Raises:
        ValueError: a role or a content that no template could show.
    """
    made = []
    for number, message in enumerate(messages):
        role = message.get("role")
        role = {"developer": "system", "function": "tool"}.get(role, role) if isinstance(role, str) else None
        if role not in ROLES:
            raise ValueError(
                f"messages[{number}].role is {str(message.get('role'))[:80]!r}, not one of {', '.join(ROLES)}"
            )
        plain = {key: value for key, value in message.items() if value is not None} | {"role": role}
        if role != "assistant" and message.get("content") is None:
            raise ValueError(f"messages[{number}] has no content")
        plain["content"] = _as_text(message.get("content"), number)
        if role == "assistant" and message.get("tool_calls"):
            if not isinstance(message["tool_calls"], list):
                raise ValueError(f"messages[{number}].tool_calls is no list of calls")
            plain["tool_calls"] = [_with_object(call, number) for call in message["tool_calls"]]
        made.append(plain)
    return made


def _as_text(content: Any, number: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
             for part in content] if isinstance(content, list) else [None]  # fmt: skip
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"messages[{number}].content is neither a text nor a list of text parts")
    return "".join(map(str, texts))


def _with_object(call: Any, number: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"messages[{number}].tool_calls holds a call without function.name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"messages[{number}].tool_calls: arguments are not JSON") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"messages[{number}].tool_calls: arguments are not an object")
    return {**call, "function": {**function, "arguments": arguments}}
