"""Incremental decoding of answers: whole characters, cut before a stop string, split into reasoning, content and calls.

stream = Text(tokenizer, stop=["###"], in_thought=prompt.in_thought, tools=False)
for token in answer:
    for piece in stream.feed(token.id):     # Piece("reasoning", "12 9"), Piece("content", "9")
        ...
    if stream.stopped:
        answer.cancel()
stream.end()
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nemotron_data.tokenizers.words import Words
from nemotron_serving.calls import Call, parse_calls


class Piece(NamedTuple):
    """A part of an answer that cannot change any more."""

    kind: Literal["reasoning", "content", "call"]
    text: str
    call: Call | None = None


class Text:
    """Decoder for an answer. Without `markup` everything is content, as for plain completions.

    Args:
        begin: text in front of the first token.

    Attributes:
        stopped: a stop string was found.
        length: characters so far, including markup.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str] = (),
        *,
        markup: bool = True,
        in_thought: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        begin: str = "",
    ) -> None:
        self.stopped, self.length = False, 0
        self._words, self._stop, self._held = Words(tokenizer), list(stop), begin
        self._parts = Parts(in_thought, tools) if markup else None

    def feed(self, token: int) -> list[Piece]:
        """Add a token; returns the pieces that are now certain."""
        return self._certain(self._words.feed(token), at_end=False)

    def end(self) -> list[Piece]:
        """Return the remaining pieces."""
        return self._certain(self._words.end(), at_end=True)

    def _certain(self, text: str, *, at_end: bool) -> list[Piece]:
        if not self.stopped:
            text, self._held = self._held + text, ""
            found = min((text.find(stop) for stop in self._stop if stop in text), default=-1)
            if found >= 0:
                self.stopped, text = True, text[:found]
            elif not at_end:
                cut = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
                text, self._held = text[:cut], text[cut:]
        else:
            text = ""
        self.length += len(text)
        if self._parts is None:
            return [Piece("content", text)] if text else []
        return self._parts.feed(text, at_end=at_end)


def _overlap(text: str, tag: str) -> int:
    """Number of characters at the end of `text` that may be the beginning of `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)


class Parts:
    """Separate reasoning (`<think>`), content and tool calls (`<tool_call>`, in JSON or XML)."""

    def __init__(self, in_thought: bool, tools: Sequence[Mapping[str, Any]]) -> None:
        self._where: Literal["reasoning", "content", "call"] = "reasoning" if in_thought else "content"
        self._tools = {tool["function"]["name"]: tool["function"] for tool in tools}
        self._held, self._begun, self._fresh = "", False, True

    def feed(self, text: str, *, at_end: bool = False) -> list[Piece]:
        """Add text; returns the pieces that are certain."""
        text, self._held = self._held + text, ""
        pieces: list[Piece] = []
        while True:
            tags = self._tags()
            place, tag = min(((text.find(tag), tag) for tag in tags if tag in text), default=(-1, ""))
            if place < 0:
                break
            self._tell(pieces, text[:place], whole=True)
            text = text[place + len(tag) :]
            self._enter(tag)
        cut = len(text) if at_end else len(text) - max((_overlap(text, tag) for tag in tags), default=0)
        if self._where == "call" and not at_end:
            cut = 0
        self._tell(pieces, text[:cut], whole=False)
        self._held = text[cut:]
        return pieces

    def _tags(self) -> list[str]:
        if self._where == "reasoning":
            return ["</think>"]
        if self._where == "call":
            return ["</tool_call>"]
        return [*(() if self._begun else ("<think>",)), *(("<tool_call>",) if self._tools else ())]

    def _enter(self, tag: str) -> None:
        entered: dict[str, Literal["reasoning", "content", "call"]] = {"<think>": "reasoning", "<tool_call>": "call"}
        self._where, self._fresh = entered.get(tag, "content"), True

    def _tell(self, pieces: list[Piece], text: str, *, whole: bool) -> None:
        """Args: whole: the part ends here."""
        if self._where == "call":
            # also a call that is cut off just before its closing tag, if nothing else is missing
            calls = parse_calls(text, self._tools, closed=whole)
            if calls:
                pieces += [Piece("call", text if number == 0 else "", call) for number, call in enumerate(calls)]
            elif text:  # not a valid call: show the text rather than lose it
                pieces.append(Piece("content", f"<tool_call>{text}" + ("</tool_call>" if whole else "")))
            return
        if self._fresh:
            text = text.lstrip("\n")
        if text:
            self._fresh = False
            self._begun = self._begun or (self._where == "content" and bool(text.strip()))
            pieces.append(Piece(self._where, text))
