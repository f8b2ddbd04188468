"""Names of control tokens inside of people's text: they are text, and never become the token.

    "What does <|im_end|> mean?"   is encoded as   "What does <"  "|im_end|> mean?"

A name is cut after its first character and the pieces are encoded one by one, so that no library sees the name, and
each gives the same ids.
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
"""What an answer is written with where a row has no fields for it. Templates take it apart or pass it on."""
MARK = re.compile(r"[<\[{｜|].*[>\]}｜|]", re.DOTALL)


@dataclass(frozen=True)
class ControlTokens:
    """The tokens of a tokenizer that steer a conversation, by name; a worker is sent this.

    Words that somebody has added to a vocabulary, and runs of white space, are text. So is a name of one character,
    which nothing can cut.
    """

    ids: dict[str, int]
    spelled: bool = True
    """Whether the tokens of pieces spell a text. Some tokenizers put a space before whatever they encode."""

    @classmethod
    def among(cls, added: Mapping[int, "AddedToken"]) -> "ControlTokens":
        """Those that a tokenizer calls special, and others that look like a mark, as DeepSeek's `<｜User｜>`."""
        usable = ((number, token) for number, token in added.items() if len(token.content) > 1)
        return cls({t.content: number for number, t in usable if t.special or MARK.fullmatch(t.content)})

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "ControlTokens":
        """Those of a tokenizer, and whether it spells them."""
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
        """Matches the name of any."""
        return re.compile(pattern_of(self.ids))

    @cached_property
    def but_markup(self) -> re.Pattern[str]:
        """Matches the name of any that an answer is not written with."""
        return re.compile(pattern_of(self.ids.keys() - MARKUP))

    def pattern(self, markup_too: bool) -> re.Pattern[str]:
        """Matches the name of any, or of any but markup."""
        return self.anywhere if markup_too else self.but_markup

    def cuts(self, text: str, markup_too: bool = False) -> list[int]:
        """Where a text is cut, so that no name in it stays whole; names may overlap."""
        pattern = self.pattern(markup_too)
        if not pattern.search(text):
            return []
        return [match.start() + 1 for match in re.finditer(f"(?={pattern.pattern})", text)]

    def guarded(self, text: str, guard: str, markup_too: bool) -> str:
        """The text with `guard` inside of every name."""
        return guard.join(in_pieces(text, self.cuts(text, markup_too)))

    def documents_with(self, ids: np.ndarray, offsets: np.ndarray) -> list[int]:
        """The numbers of the encoded documents that hold one."""
        table = np.zeros(max([int(ids.max(initial=0)), *self.ids.values()]) + 1, dtype=bool)
        table[[number for name, number in self.ids.items() if name not in MARKUP]] = True
        return np.unique(np.searchsorted(offsets, np.flatnonzero(table[ids]), side="right") - 1).tolist()


NO_CONTROL = ControlTokens({})


def in_pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text between the cuts."""
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def encode_in_pieces(encode: EncodeCall, texts: Sequence[str], cuts: Sequence[Sequence[int]]) -> Encoded:
    """As `encode` of the texts, each cut at its places."""
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
    """One line for people about the rows that hold names of control tokens; None where none does."""
    became = {"text": "encoded as plain text", "reject": "left out", "allow": "taken for the tokens"}[policy]
    return f"{count:,} rows hold control tokens in their text; {became} (data_prep.control_tokens)" if count else None


def pattern_of(names: Iterable[str]) -> str:
    """A regular expression for any of the names, which takes as long for a thousand of them as for one."""
    branches: dict[str, list[str]] = {}
    for name in names:
        branches.setdefault(name[:1], []).append(name[1:])
    if not branches:
        return "(?!)"
    if "" in branches:
        return ""  # a shorter name ends here, and its place is all that is asked for
    parts = [re.escape(first) + pattern_of(rests) for first, rests in sorted(branches.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
