r"""Tokens as text: bytes and unique names of single ones, and incremental decoding of an answer.

    names = TokenNames(tokenizer)
    names.bytes_of(17), names.of(17)      # b" In", " In"
    names.bytes_of(93), names.of(93)      # b"\xf0\x9f", "bytes:\\xf0\\x9f"

A token may be a part of a character. Decoded alone, it becomes U+FFFD, like many others, which is neither their
text nor a name. The concatenated bytes of an answer's tokens are its text.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

PREFIX = "bytes:"
FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
KEPT = 1 << 16


@cache
def _byte_alphabet() -> dict[str, int]:
    """Characters with which byte-level vocabularies write bytes; printable ones stand for themselves."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [number for number in range(256) if number not in printing]
    return {chr(number): number for number in printing} | {chr(256 + at): number for at, number in enumerate(others)}


class TokenNames:
    """Token names of one tokenizer, as transformers loads it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.bytes_of = lru_cache(KEPT)(self._bytes_of)

    def of(self, token: int) -> str:
        """Text of a token; its bytes if the text is not whole characters or equals another token's text."""
        content = self.bytes_of(token)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = None
        if text is None or self._piece(token, FALLBACK):
            return PREFIX + "".join(f"\\x{byte:02x}" for byte in content)
        return text

    def _bytes_of(self, token: int) -> bytes:
        shown = self._tokenizer.decode([token])
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return shown.encode()
        if fallback := FALLBACK.fullmatch(piece):
            return bytes.fromhex(fallback[1])
        alphabet = _byte_alphabet()
        if all(char in alphabet for char in piece):
            content = bytes(alphabet[char] for char in piece)
            if content.decode(errors="replace") == shown:
                return content
        spaced = piece.replace("▁", " ")  # decoding strips it at the start of a text
        return (spaced if spaced.lstrip(" ") == shown.lstrip(" ") else shown).encode()

    def _piece(self, token: int, pattern: re.Pattern[str]) -> bool:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        return isinstance(piece, str) and pattern.fullmatch(piece) is not None


def by_name(names: TokenNames, scores: Iterable[tuple[int, float]]) -> dict[str, float]:
    """Log-probabilities of tokens, keyed by unique name."""
    found: dict[str, float] = {}
    for token, logprob in scores:
        name = names.of(token)
        found[name if name not in found else f"token_id:{token}"] = logprob
    return found


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
        """Return the rest of the text."""
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
