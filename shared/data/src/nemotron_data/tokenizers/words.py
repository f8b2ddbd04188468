"""Incremental decoding of tokens, and their positions in the text. A character may consist of several tokens."""

from collections.abc import Sequence
from typing import Any

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
UNFINISHED = "�"


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of tokens that do not belong to an answer's text: `special: true`, with or without a role."""
    added = tokenizer.added_tokens_decoder.items()
    return {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}


class Words:
    """Incremental decoder; holds back text that the next token could still change.

    Args:
        all_shown: include special tokens.
    """

    def __init__(self, tokenizer: Any, *, all_shown: bool = False) -> None:
        self._tokenizer = tokenizer
        special = () if all_shown else special_ids(tokenizer)
        self._silent = {number for number in special if tokenizer.convert_ids_to_tokens(number) not in MARKUP}
        self._ids: list[int] = []
        self._known = self._told = 0

    def feed(self, token: int) -> str:
        """Add a token; returns the text that is now certain."""
        if token in self._silent:
            return ""
        self._ids.append(token)
        before, now = self._decoded(self._known, self._told), self._decoded(self._known, len(self._ids))
        if len(now) <= len(before) or now.endswith(UNFINISHED):
            return ""
        # decoded together with the tokens before them: alone, some tokenizers drop a leading space
        self._known, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def end(self) -> str:
        """Return the text that was held back."""
        before, now = self._decoded(self._known, self._told), self._decoded(self._known, len(self._ids))
        return now[len(before) :]

    def _decoded(self, start: int, end: int) -> str:
        return self._tokenizer.decode(self._ids[start:end], skip_special_tokens=False)


class Places:
    """Character positions of tokens in the decoded text; parts of a character share the position where it begins.

    Args:
        prompt: ids that come first; special tokens among them are shown as well.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()) -> None:
        self._prompt, self._answer = Words(tokenizer, all_shown=True), Words(tokenizer)
        self._left, self._before = len(prompt), 0

    def of(self, token: int) -> int:
        """Position of the next token, in characters."""
        place = self._before
        if self._left:
            self._before += len(self._prompt.feed(token))
            self._left -= 1
            self._before += len(self._prompt.end()) if not self._left else 0
        else:
            self._before += len(self._answer.feed(token))
        return place
