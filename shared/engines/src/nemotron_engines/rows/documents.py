"""Rows for pretraining: documents in a shuffled order, one after another, cut every `seq_length` tokens.

documents  [the cat </s>] [a dog ran </s>] ...   shuffled by the seed, again for every epoch
rows       the cat </s> a | dog ran </s> ... |
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from nemotron_data.formats.bin_idx import IndexedDataset
from nemotron_data.formats.packed import IGNORED
from nemotron_engines.rows.order import order_of_epoch
from nemotron_engines.rows.token_ids import require_known_ids
from nemotron_shared.errors import UserError


class DocumentRows(Dataset):
    """Row i is always the same for a seed, so a resumed run continues where the previous one stopped.

    Each row is {"input_ids": (seq_length,) int64, "labels": the next token of each}; the last label is -100.
    """

    def __init__(
        self,
        datasets: Sequence[IndexedDataset],
        seq_length: int,
        num_rows: int,
        seed: int,
        vocab_size: int | None = None,
    ) -> None:
        """`vocab_size` is the model's, if given: a larger id is an error that names the file."""
        self.datasets = datasets
        self.seq_length = seq_length
        self.num_rows = num_rows
        self.seed = seed
        self.vocab_size = vocab_size
        self.lengths = np.concatenate([dataset.lengths for dataset in datasets]).astype(np.int64)
        self.tokens_per_epoch = int(self.lengths.sum())
        if self.tokens_per_epoch == 0:
            raise UserError("the split has no tokens", "prepare more rows, or raise its share in data_prep.split")
        self._first = np.concatenate([[0], np.cumsum([len(dataset) for dataset in datasets])])
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self._read(index * self.seq_length, self.seq_length))
        return {"input_ids": ids, "labels": torch.cat([ids[1:], ids.new_tensor([IGNORED])])}

    def _read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens of the endless stream from token `start` on."""
        pieces = []
        while count > 0:
            epoch, offset = divmod(start, self.tokens_per_epoch)
            order, ends = self._epoch(epoch)
            place = int(np.searchsorted(ends, offset, side="right"))
            begin = offset - (int(ends[place - 1]) if place else 0)
            piece = self._document(int(order[place]))[begin : begin + count]
            pieces.append(piece.astype(np.int64))
            start += len(piece)
            count -= len(piece)
        return np.concatenate(pieces)

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Order of the documents in an epoch, and the end of each in its stream."""
        if epoch not in self._epochs:
            order = order_of_epoch(self.seed, epoch, len(self.lengths))
            self._epochs = {epoch: (order, np.cumsum(self.lengths[order]))}
        return self._epochs[epoch]

    def _document(self, index: int) -> np.ndarray:
        which = int(np.searchsorted(self._first, index, side="right")) - 1
        number = index - int(self._first[which])
        ids = self.datasets[which][number]
        if self.vocab_size is not None:
            require_known_ids(ids, self.vocab_size, f"{self.datasets[which].prefix}.bin: document {number}")
        return ids
