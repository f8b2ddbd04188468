"""Rows of several data sets in the proportions of their weights.

The index n alone decides which data set the n-th row comes from, by a sequence whose counts stay within a few rows of
the weights at every length. So a resumed run continues exactly, and no data set exceeds its share.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from nemotron_engines.rows.documents import DocumentRows

GOLDEN_RATIO = (5**0.5 - 1) / 2


class BlendedRows(Dataset):
    """`num_rows` rows of `parts`, part k with the share `weights[k] / sum(weights)`."""

    def __init__(self, parts: Sequence[DocumentRows], weights: Sequence[float], num_rows: int) -> None:
        self.parts = parts
        self.num_rows = num_rows
        self.choice = choose(np.asarray(weights), num_rows)
        self._place = np.empty(num_rows, dtype=np.int64)
        for part in range(len(parts)):
            mine = self.choice == part
            self._place[mine] = np.arange(mine.sum())

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.parts[self.choice[index]][int(self._place[index])]

    def realised_shares(self) -> list[float]:
        """Actual share of each part's rows."""
        return (np.bincount(self.choice, minlength=len(self.parts)) / self.num_rows).tolist()


def choose(weights: np.ndarray, num_rows: int) -> np.ndarray:
    """Which part each row comes from: (num_rows,) ints."""
    edges = np.cumsum(weights / weights.sum())
    edges[-1] = 1.0
    return np.searchsorted(edges, np.arange(num_rows) * GOLDEN_RATIO % 1, side="right")
