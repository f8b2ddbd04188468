r"""Which tokens the assistant wrote, and names of control tokens that are text.

    "<|im_start|>assistant\nHello<|im_end|>\n"    one span, the characters [22, 37)
     |___________||________||_||__||________||_|  tokens end at the bytes 12 21 22 27 37 38
                               1   1              the tokens with bytes 22 to 36

Fast libraries do not return token offsets. In a plain byte-level tokenizer they follow from the tokens' lengths; a sum
that differs from the text's length is detected. As in transformers, a span covers the tokens from the one with its
first character to the one with the first byte of its last character.

    "What does <|im_end|> mean?"   is encoded as   "What does <"  "|im_end|> mean?"

A name in somebody's words is cut after its first character and the pieces are encoded separately, so that libraries
never see it, and all give the same ids.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.encoders.backends import EncodeCall, Encoded, is_plain_byte_level, offsets_of
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.limits import panics_told

if TYPE_CHECKING:
    from tokenizers import AddedToken

Span = tuple[int, int]
"""[start, end) characters of a text that a model is trained on."""


def token_bytes(folder: TokenizerFolder) -> np.ndarray | None:
    """Length in bytes of every token, int32, by id; None unless the tokenizer is plain byte-level."""
    tokenizer = folder.tokenizer
    if not is_plain_byte_level(tokenizer):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder()
    lengths = np.zeros(max([*vocabulary.values(), *added], default=-1) + 1, dtype=np.int32)
    numbers = np.fromiter(vocabulary.values(), dtype=np.int64, count=len(vocabulary))
    lengths[numbers] = np.fromiter(map(len, vocabulary), dtype=np.int32, count=len(vocabulary))
    for number, token in added.items():
        lengths[number] = len(token.content.encode())
    return lengths


def masks_from_spans(
    ids: np.ndarray,
    offsets: np.ndarray,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    lengths: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Loss masks of many texts, aligned with `ids`, and which texts' masks are valid.

    Args:
        ids: concatenated tokens of all texts.
        offsets: start of each text's tokens in `ids`; one more entry than texts.
        texts: the n encoded texts.
        spans: for each text the [start, end) characters to train on, disjoint and sorted.
        lengths: from `token_bytes`; if None, no mask can be determined here.

    Returns:
        uint8 [len(ids)], 1 where a token counts, and bool [n]. False: the tokens do not add up to the text, or all
        of them would count; the mask is invalid, and `mask_by_offsets` decides.
    """
    if lengths is None:
        return np.zeros(len(ids), dtype=np.uint8), np.zeros(len(texts), dtype=bool)
    ends = offsets_of(lengths[ids])
    starts = ends[offsets[:-1]]
    sizes, first, last, owners = _places(texts, spans)
    ok = ends[offsets[1:]] - starts == sizes
    used = ok[owners]
    base = starts[owners[used]]
    opened = np.searchsorted(ends[1:], base + first[used], side="right")
    closed = np.searchsorted(ends[1:], base + last[used], side="right") + 1
    # two spans may share a token, so count how many are open
    changes = np.bincount(opened, minlength=len(ids) + 1) - np.bincount(closed, minlength=len(ids) + 1)
    mask = (np.cumsum(changes[:-1]) > 0).astype(np.uint8)
    counted = np.diff(offsets_of(mask)[offsets])
    return mask, ok & ((counted < np.diff(offsets)) | (counted == 0))


def _places(
    texts: Sequence[str], spans: Sequence[Sequence[Span]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bytes of each text; for each span its first byte, the first byte of its last character, and its text."""
    sizes = np.zeros(len(texts), dtype=np.int64)
    first: list[int] = []
    last: list[int] = []
    owners: list[int] = []
    for number, (text, marked) in enumerate(zip(texts, spans, strict=True)):
        places = [place for start, end in marked if start < end for place in (start, end - 1)]
        if text.isascii():
            sizes[number] = len(text)
        else:
            # UTF-8 bytes before each of these characters, which are sorted
            pieces = pairwise([0, *places, len(text)])
            *places, sizes[number] = accumulate(len(text[start:end].encode()) for start, end in pieces)
        first += places[::2]
        last += places[1::2]
        owners += [number] * (len(places) // 2)
    return sizes, np.array(first, dtype=np.int64), np.array(last, dtype=np.int64), np.array(owners, dtype=np.int64)


def mask_by_offsets(
    tokenizer: Tokenizer, text: str, spans: Sequence[Span], cuts: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """Token ids of `text`, and a mask: 1 for tokens in a span (disjoint, sorted), else 0.

    As in transformers, a span covers the tokens from the one with its first character to the first one with its last
    character. The mask is aligned with the ids: entry k is about token k. No tokens are added before or after the text,
    which is encoded in the pieces between the `cuts`.
    """
    # a post-processor adds nothing here, but may trim spaces off the offsets, which then match no character
    processor, tokenizer.post_processor = tokenizer.post_processor, None
    ids: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    try:
        for begin, end in pairwise([0, *cuts, len(text)]):
            with panics_told(text[begin:end]):
                encoding = tokenizer.encode(text[begin:end], add_special_tokens=False)
            ids += encoding.ids
            starts += [begin + start for start, _ in encoding.offsets]
            ends += [begin + stop for _, stop in encoding.offsets]
    finally:
        tokenizer.post_processor = processor
    mask = [0] * len(ends)
    for start, end in spans:
        first, last = bisect_right(ends, start), bisect_right(ends, end - 1)
        # if the last character has no token, say because it was normalized away, the span ends with the token before it
        stop = last + 1 if last < len(ends) and starts[last] < end else last
        mask[first:stop] = [1] * (stop - first)
    return ids, mask


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
