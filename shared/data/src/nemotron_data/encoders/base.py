"""What every tokenizer backend offers: many texts in, flat arrays out.

    encode(["Hello", "", "a b"])  ->  ids [9707, 264, 293], offsets [0, 1, 1, 3]

One call for many texts and no Python integers: one call per text, or lists, cost most of a fast library's speed.
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
    """Encodes texts as `tokenizers` does with add_special_tokens=False, whole: no truncation, no padding.

    Special tokens' names inside a text become their ids, as in `tokenizers`.
    """

    name: ClassVar[str]

    @property
    def version(self) -> str:
        """Version of the library."""
        return importlib.metadata.version(self.name)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Ids of all texts back to back, uint32, and int64 offsets, one more than texts, the first 0.

        Raises:
            ValueError: a text that is not Unicode, that is, holds a lone surrogate.
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
        """Every code path that `encode` may take; a probe tries them all."""
        return [self.encode]

    @abstractmethod
    def _encode(self, texts: Sequence[str]) -> Encoded: ...


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Offsets from token counts: [1, 0, 2] -> [0, 1, 1, 3]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def flatten(pieces: Sequence[np.ndarray]) -> Encoded:
    """One array of ids per text, put back to back."""
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    ids = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint32)
    return ids, offsets_of(lengths)


def one_thread() -> None:
    """Tell the tokenizer libraries to use one thread: data preparation runs many processes.

    Has to come before a library's first call, since it makes its threads only once.
    """
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
