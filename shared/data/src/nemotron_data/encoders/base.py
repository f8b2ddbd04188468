"""Interface of tokenizer backends: many texts in, flat arrays out.

    encode(["Hello", "", "a b"])  ->  ids [9707, 264, 293], offsets [0, 1, 1, 3]

One call for many texts and no Python integers: one call per text, or lists, would cost most of a fast library's speed.
"""

import importlib.metadata
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from nemotron_data.tokenizers.limits import panics_told

Encoded = tuple[np.ndarray, np.ndarray]
EncodeCall = Callable[[Sequence[str]], Encoded]


class Encoder(ABC):
    """Encode texts like `tokenizers` with add_special_tokens=False, without truncation or padding.

    Names of special tokens inside a text become their ids, as in `tokenizers`.
    """

    name: ClassVar[str]

    @property
    def version(self) -> str:
        """Version of the library."""
        return importlib.metadata.version(self.name)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Concatenated ids of all texts, uint32, and int64 offsets (len(texts) + 1, the first 0).

        Raises:
            ValueError: a text with a lone surrogate.
            UserError: the library panics.
        """
        try:
            with panics_told(texts[0] if texts else ""):
                return self._encode(texts)
        except (TypeError, UnicodeEncodeError):
            for number, text in enumerate(texts):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    what = f"text {number} is not Unicode: character {error.start} is a lone surrogate"
                    raise ValueError(what) from error
            raise

    def ways(self) -> list[EncodeCall]:
        """All code paths that `encode` may take, for the probe to test."""
        return [self.encode]

    @abstractmethod
    def _encode(self, texts: Sequence[str]) -> Encoded: ...


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Offsets from token counts: [1, 0, 2] -> [0, 1, 1, 3]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def flatten(pieces: Sequence[np.ndarray]) -> Encoded:
    """Concatenate one array of ids per text."""
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    ids = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint32)
    return ids, offsets_of(lengths)


def one_thread() -> None:
    """Limit tokenizer libraries to one thread, because data preparation runs many processes.

    Must be called before a library's first call, which creates its threads.
    """
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
