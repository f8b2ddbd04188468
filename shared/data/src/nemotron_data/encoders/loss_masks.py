r"""Loss masks of many chats at once, from the lengths of their tokens.

    "<|im_start|>assistant\nHello<|im_end|>\n"    one span, the characters [22, 37)
     |___________||________||_||__||________||_|  tokens end at the bytes 12 21 22 27 37 38
                               1   1              the tokens with bytes 22 to 36

Fast libraries do not return token offsets. In a plain byte-level tokenizer they follow from the tokens' lengths; a sum
that differs from the text's length is detected. As in transformers, a span covers the tokens from the one with its
first character to the one with the first byte of its last character.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from nemotron_data.encoders.base import offsets_of
from nemotron_data.encoders.layout import is_plain_byte_level
from nemotron_data.tokenizers.folder import TokenizerFolder

if TYPE_CHECKING:
    from nemotron_data.chat.template import Span


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
    spans: Sequence[Sequence["Span"]],
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
    texts: Sequence[str], spans: Sequence[Sequence["Span"]]
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
