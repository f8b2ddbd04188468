"""Token ids as readable text: special tokens and invisible characters are shown.

    [1, 301, 17, 2]  ->  Piece("<|im_start|>", special), Piece("user"), Piece("↵\\n"), ...

A character whose bytes span several tokens becomes a single piece.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from nemotron_app.inspect.examples import TokenSequence
from nemotron_data.tokenizers.folder import TokenizerFolder

Kind = Literal["text", "special", "bad", "id"]
REPLACEMENT = "\ufffd"
LONGEST_CHARACTER = 4  # bytes of a character in UTF-8, and so the most tokens that it can span
# Terminal escapes, bidi controls and joiners would change how the text is displayed.
UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True)
class Piece:
    """Visible text and its token ids. `bad` marks ids unknown to the tokenizer."""

    text: str
    ids: tuple[int, ...]
    kind: Kind
    trained: bool


def visible(text: str, newline: str = "\n") -> str:
    """Escape control and formatting characters in a text; `newline` replaces line breaks."""

    def written_out(found: re.Match[str]) -> str:
        code = ord(found[0])
        return "→\t" if found[0] == "\t" else chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"

    return UNSEEN.sub(written_out, text).replace("\n", newline)


class Decoder:
    """Decodes with a tokenizer folder; without one it shows ids as numbers."""

    def __init__(self, folder: Path | None, vocab_size: int | None = None) -> None:
        self.folder = folder
        self._vocab_size = vocab_size
        self._tokenizer = TokenizerFolder(folder).tokenizer if folder else None

    @cached_property
    def vocab_size(self) -> int | None:
        """Largest tokenizer id plus one; without a tokenizer, the size that the set declares."""
        if self._tokenizer is None:
            return self._vocab_size
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special(self) -> dict[int, str]:
        """Special tokens by id."""
        if self._tokenizer is None:
            return {}
        added = self._tokenizer.get_added_tokens_decoder()
        return {number: token.content for number, token in added.items() if token.special}

    def text(self, ids: Sequence[int]) -> str:
        """Plain text with special tokens; numbers without a tokenizer."""
        if self._tokenizer is None:
            return " ".join(map(str, ids))
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def pieces(self, sequence: TokenSequence, limit: int) -> list[Piece]:
        """Decode the first `limit` tokens of a sequence."""
        ids = [int(number) for number in sequence.ids[:limit]]
        flags = [True] * len(ids) if sequence.trained is None else [bool(flag) for flag in sequence.trained[:limit]]
        found: list[Piece] = []
        start = 0
        while start < len(ids):
            text, kind, size = self._next(ids, start)
            found.append(Piece(text, tuple(ids[start : start + size]), kind, flags[start + size - 1]))
            start += size
        return found

    def _next(self, ids: list[int], start: int) -> tuple[str, Kind, int]:
        number = ids[start]
        if self._tokenizer is None:
            return f"{number} ", "id", 1
        if number in self.special:
            return self.special[number], "special", 1
        if not self._known(number):
            return f"<id {number}>", "bad", 1
        size = 1
        while True:
            text = self._text_after(ids[start - 1 : start] if start else [], ids[start : start + size])
            following = ids[start + size : start + size + 1]
            if REPLACEMENT not in text or size == LONGEST_CHARACTER or not following:
                break
            if following[0] in self.special or not self._known(following[0]):
                break
            size += 1
        # Bytes that still form no character become a one-token piece, so that decoding resumes after them.
        return (text, "text", size) if REPLACEMENT not in text else (self.text([number]), "text", 1)

    def _known(self, number: int) -> bool:
        # The tokenizer's own lookup overflows on negative ids.
        return number >= 0 and self._tokenizer is not None and self._tokenizer.id_to_token(number) is not None

    def _text_after(self, before: list[int], ids: list[int]) -> str:
        """Text of ids in context: some tokenizers drop the space before the first token of a text."""
        before = [number for number in before if number not in self.special and self._known(number)]
        whole, head = self.text([*before, *ids]), self.text(before)
        fits = before and whole.startswith(head) and not head.endswith(REPLACEMENT)
        return whole[len(head) :] if fits else self.text(ids)
