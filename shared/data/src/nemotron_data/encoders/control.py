"""Keep control token names in user text as text, so that they never become the token.

    "What does <|im_end|> mean?"   is encoded as   "What does <"  "|im_end|> mean?"

A name is cut after its first character and the pieces are encoded separately, so that libraries never see it, and all
give the same ids.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nemotron_data.encoders.base import EncodeCall, Encoded
from nemotron_data.tokenizers.limits import panics_told

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

CONTROL = "control tokens in the text"
UNSPELLED = "control tokens in the text, which this tokenizer cannot encode as text"
UNSPELLED_REMEDY = "leave such rows out, or let them be tokens: data_prep.control_tokens=reject or allow"
HELD = "rows with control tokens in their text"
MARKUP = frozenset(
    f"<{slash}{name}>" for slash in ("", "/") for name in ("think", "tool_call", "tool_response", "tools")
) | {"[THINK]", "[/THINK]", "[TOOL_CALLS]"}
"""Markup of answers in rows without fields for it. Templates parse it or pass it on."""
MARK = re.compile(r"[<\[{｜|].*[>\]}｜|]", re.DOTALL)


@dataclass(frozen=True)
class ControlTokens:
    """Tokens of a tokenizer that control a conversation, by name; sent to workers.

    Words added to a vocabulary, and runs of white space, are text. So are names of one character, which cannot be cut.
    """

    ids: dict[str, int]
    spelled: bool = True
    """Whether tokens of pieces decode to the text. Some tokenizers put a space before everything they encode."""

    @classmethod
    def among(cls, added: Mapping[int, "AddedToken"]) -> "ControlTokens":
        """Tokens that a tokenizer calls special, and others that look like a mark, such as DeepSeek's `<｜User｜>`."""
        usable = ((number, token) for number, token in added.items() if len(token.content) > 1)
        return cls({t.content: number for number, t in usable if t.special or MARK.fullmatch(t.content)})

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "ControlTokens":
        """Control tokens of a tokenizer, and whether pieces decode to the text."""
        control = cls.among(tokenizer.get_added_tokens_decoder())
        text = f"a{''.join(control.ids)}a"
        parts = in_pieces(text, control.cuts(text))
        with panics_told(text):
            whole = tokenizer.encode(text, add_special_tokens=False)
            ids = [number for part in parts for number in tokenizer.encode(part, add_special_tokens=False).ids]
        decoded = [tokenizer.decode(numbers, skip_special_tokens=False) for numbers in (whole.ids, ids)]
        return replace(control, spelled=decoded[0] == decoded[1])

    @cached_property
    def anywhere(self) -> re.Pattern[str]:
        """Matches any name."""
        return re.compile(pattern_of(self.ids))

    @cached_property
    def but_markup(self) -> re.Pattern[str]:
        """Matches any name except markup of answers."""
        return re.compile(pattern_of(self.ids.keys() - MARKUP))

    def pattern(self, markup_too: bool) -> re.Pattern[str]:
        """Matches any name, with or without markup."""
        return self.anywhere if markup_too else self.but_markup

    def cuts(self, text: str, markup_too: bool = False) -> list[int]:
        """Positions at which to cut a text so that every name is split; names may overlap."""
        pattern = self.pattern(markup_too)
        if not pattern.search(text):
            return []
        return [match.start() + 1 for match in re.finditer(f"(?={pattern.pattern})", text)]

    def guarded(self, text: str, guard: str, markup_too: bool) -> str:
        """The text with `guard` inserted into every name."""
        return guard.join(in_pieces(text, self.cuts(text, markup_too)))

    def documents_with(self, ids: np.ndarray, offsets: np.ndarray) -> list[int]:
        """Indices of the encoded documents that contain a control token."""
        table = np.zeros(max([int(ids.max(initial=0)), *self.ids.values()]) + 1, dtype=bool)
        table[[number for name, number in self.ids.items() if name not in MARKUP]] = True
        return np.unique(np.searchsorted(offsets, np.flatnonzero(table[ids]), side="right") - 1).tolist()


NO_CONTROL = ControlTokens({})


def in_pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """Pieces of the text between the cuts."""
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def encode_in_pieces(encode: EncodeCall, texts: Sequence[str], cuts: Sequence[Sequence[int]]) -> Encoded:
    """Encode the texts with `encode`, each cut at its positions."""
    if not any(cuts):
        return encode(texts)
    pieces: list[str] = []
    firsts = [0]
    for text, places in zip(texts, cuts, strict=True):
        pieces += in_pieces(text, places)
        firsts.append(len(pieces))
    ids, offsets = encode(pieces)
    return ids, offsets[firsts]


def announcement(count: int, policy: str) -> str | None:
    """One line for people about rows that contain control token names; None without any."""
    became = {"text": "encoded as plain text", "reject": "left out", "allow": "taken for the tokens"}[policy]
    return f"{count:,} rows hold control tokens in their text; {became} (data_prep.control_tokens)" if count else None


def pattern_of(names: Iterable[str]) -> str:
    """Regular expression for any of the names; a thousand take as long to match as one."""
    branches: dict[str, list[str]] = {}
    for name in names:
        branches.setdefault(name[:1], []).append(name[1:])
    if not branches:
        return "(?!)"
    if "" in branches:
        return ""  # a shorter name ends here, and we need only its position
    parts = [re.escape(first) + pattern_of(rests) for first, rests in sorted(branches.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
