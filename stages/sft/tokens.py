"""Many encoded texts at once: how long they are, what of them is learnt, and their beginnings."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """Encoded texts back to back: text i is `offsets[i] : offsets[i + 1]` of ids and mask."""

    ids: np.ndarray
    mask: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def all_masked(self) -> np.ndarray:
        """Of which texts every token was written by the assistant."""
        return (self._sums[self.offsets[1:]] - self._sums[self.offsets[:-1]] == self.lengths) & (self.lengths > 0)

    def learnt(self, keep: np.ndarray) -> np.ndarray:
        """How many of the first `keep` tokens of each text are learnt; the very first is predicted from nothing."""
        start = self.offsets[:-1]
        second = np.minimum(start + 1, start + keep)
        return self._sums[start + keep] - self._sums[second]

    @cached_property
    def _sums(self) -> np.ndarray:
        """Masked tokens before each place."""
        return np.concatenate([[0], np.cumsum(self.mask, dtype=np.int64)])

    def heads(self, keep: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask of the first `keep` tokens of the texts `kept`."""
        if np.array_equal(keep, self.lengths):
            return self.ids, self.mask
        low = self.offsets[kept]
        pairs = list(zip(low.tolist(), (low + keep[kept]).tolist(), strict=True))
        if not pairs:
            return self.ids[:0], self.mask[:0]
        ids = np.concatenate([self.ids[start:end] for start, end in pairs])
        return ids, np.concatenate([self.mask[start:end] for start, end in pairs])
