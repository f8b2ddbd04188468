"""Tokenizer backends: the three libraries behind `Encoder`, each imported only when it is loaded.

MB of text per CPU-second on one thread with a vocabulary of 131k: gigatoken 170, fastokens 150, tokenizers 2.5.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.encoders.base import EncodeCall, Encoded, Encoder, flatten, one_thread
from nemotron_data.encoders.joining import Joiner

# A call of gigatoken takes as long as separating 2,000 characters (measured). Affects only speed.
LONG_TEXT = 2000


class GigatokenEncoder(Encoder):
    """gigatoken. Its batch call imports awkward, which takes half a second, so long texts go alone, others joined."""

    name = "gigatoken"

    def __init__(self, file: Path, joiner: Joiner | None = None) -> None:
        """Load `tokenizer.json`. `joiner` must be the result of `find_joiner` for it, or None."""
        one_thread()
        import gigatoken

        self._tokenizer: Any = gigatoken.Tokenizer(str(file))
        self.joiner = joiner

    def _encode(self, texts: Sequence[str]) -> Encoded:
        if len(texts) < 2 or sum(map(len, texts)) >= LONG_TEXT * len(texts):
            return self._one_by_one(texts)
        return self._all_in_one(texts)

    def ways(self) -> list[EncodeCall]:
        return [self._one_by_one, self._all_in_one]

    def _one_by_one(self, texts: Sequence[str]) -> Encoded:
        return flatten([self._tokenizer.encode(text) for text in texts])

    def _all_in_one(self, texts: Sequence[str]) -> Encoded:
        if self.joiner is None:
            layout = self._tokenizer.encode_batch(list(texts), parallel=False).layout
            return np.asarray(layout.content.data), np.asarray(layout.offsets.data).astype(np.int64)
        if not texts:
            return flatten([])
        pieces = [text.encode() for text in texts]
        return self.joiner.cut(self._tokenizer.encode(self.joiner.join(pieces)), pieces)


class FastokensEncoder(Encoder):
    """fastokens."""

    name = "fastokens"

    def __init__(self, file: Path) -> None:
        one_thread()
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def _encode(self, texts: Sequence[str]) -> Encoded:
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)


class ReferenceEncoder(Encoder):
    """`tokenizers`, the slow reference that defines the correct ids."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Disable truncation and padding of `tokenizer`, which would silently cut training data."""
        one_thread()
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def _encode(self, texts: Sequence[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return flatten([np.array(encoding.ids, dtype=np.uint32) for encoding in encodings])
