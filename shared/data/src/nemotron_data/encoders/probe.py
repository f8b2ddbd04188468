"""Check that a fast tokenizer library gives the ids of `tokenizers`, text by text."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from nemotron_data.encoders.base import EncodeCall, Encoded, Encoder


def difference(encoder: Encoder, texts: Sequence[str], expected: Encoded) -> str | None:
    """Why the encoder may not be used, or None if all its code paths give the expected ids."""
    for way in encoder.ways():
        if count := _documents_that_differ(_try(way, texts), expected):
            return f"{count:,} of {len(texts):,} documents get other ids than from tokenizers"
    return None


def _try(way: EncodeCall, texts: Sequence[str]) -> Encoded:
    ids, offsets = way(texts)
    if len(offsets) != len(texts) + 1:
        raise ValueError(f"{len(offsets) - 1} results for {len(texts)} texts")
    return ids, offsets


def _documents_that_differ(found: Encoded, expected: Encoded) -> int:
    if all(map(np.array_equal, found, expected)):
        return 0
    return sum(not np.array_equal(mine, theirs) for mine, theirs in zip(_cut(found), _cut(expected), strict=True))


def _cut(encoded: Encoded) -> list[np.ndarray]:
    ids, offsets = encoded
    return [ids[start:end] for start, end in pairwise(offsets.tolist())]
