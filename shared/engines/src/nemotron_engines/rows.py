"""Rows for training: documents for pretraining, packed conversations, and blends of data sets.

documents  [the cat </s>] [a dog ran </s>] ...   shuffled by the seed, again for every epoch
rows       the cat </s> a | dog ran </s> ... |   cut every `seq_length` tokens

The order of an epoch depends on the seed and its number alone, so a run can continue anywhere. In a blend, the n-th row
comes from a data set that n alone decides, by a sequence whose counts stay within a few rows of the weights at every
length.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from nemotron_data.formats.bin_idx import IndexedDataset
from nemotron_data.formats.packed import IGNORED, PackedRow, labels_of
from nemotron_engines.modeling.packed import packed_inputs
from nemotron_shared.system.errors import UserError

# The order of an epoch.


@lru_cache(maxsize=8)
def order_of_epoch(seed: int, epoch: int, count: int) -> np.ndarray:
    """The numbers from 0 to count - 1, each once."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    order.flags.writeable = False
    return order


# Token ids without an embedding: damaged data, or data of another tokenizer.


def require_known_ids(ids: np.ndarray, vocab_size: int, where: str) -> None:
    """Refuse ids outside the vocabulary, for which an embedding would read out of bounds or crash.

    Raises:
        UserError: an unknown id; `where` gives file and row.
    """
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        raise UserError(
            f"{where}: token id {outside[0]} is outside the model's vocabulary of {vocab_size}",
            "if the data is damaged or made for another model, run its data preparation again with --force; if its "
            "tokenizer has added tokens that the model lacks, leave data_prep.control_tokens at 'text'",
        )


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


# Rows of several data sets in the proportions of their weights.


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


# Packed rows: shuffled by a seed, padded to a batch, their documents kept apart.


PADDING = 0
"""A token of every vocabulary. Any would do, because padding is a separate document without labels."""


class PackedRows(Dataset):
    """Row i is always the same for a seed; every epoch has its own order."""

    def __init__(
        self,
        rows: Sequence[PackedRow],
        num_rows: int,
        seed: int,
        vocab_size: int | None = None,
        file: Path | None = None,
    ) -> None:
        """`vocab_size` is the model's, if given: a larger id is an error that names `file`."""
        self.rows = rows
        self.num_rows = num_rows
        self.seed = seed
        self.vocab_size = vocab_size
        self.file = file
        self._lengths = np.array([len(row.input_ids) for row in rows])

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> PackedRow:
        epoch, place = divmod(index, len(self.rows))
        number = int(self._order(epoch)[place])
        row = self.rows[number]
        if self.vocab_size is not None:
            require_known_ids(row.input_ids, self.vocab_size, f"{self.file or 'packed data'}: row {number}")
        return row

    def tokens_before(self, index: int) -> int:
        """Tokens in the rows before `index`, without padding."""
        epoch, place = divmod(index, len(self.rows))
        return epoch * int(self._lengths.sum()) + int(self._lengths[self._order(epoch)[:place]].sum())

    def _order(self, epoch: int) -> np.ndarray:
        return order_of_epoch(self.seed, epoch, len(self.rows))


class PackedCollator:
    """Rows to one batch of tensors, each (rows, length of the longest row).

    Labels are aligned with the logits. A row's padding is a separate document without labels. Position ids restart and
    `seq_idx` changes at every document, which resets attention, convolution and Mamba state.
    """

    def __init__(self, *, tell_padding: bool = False) -> None:
        """With `tell_padding`, a batch also has `real`, which is false for padding."""
        self.tell_padding = tell_padding

    def __call__(self, rows: Sequence[PackedRow]) -> dict[str, torch.Tensor]:
        length = max(len(row.input_ids) for row in rows)
        ids = np.full((len(rows), length), PADDING, dtype=np.int64)
        labels = np.full((len(rows), length), IGNORED, dtype=np.int64)
        starts = []
        for index, row in enumerate(rows):
            size = len(row.input_ids)
            ids[index, :size] = row.input_ids
            labels[index, :size] = labels_of(row)
            starts.append([*row.seq_start_id, size] if size < length else list(row.seq_start_id))
        sizes = torch.tensor([[len(row.input_ids)] for row in rows])
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            **packed_inputs(starts, length),
            **({"real": torch.arange(length) < sizes} if self.tell_padding else {}),
        }
