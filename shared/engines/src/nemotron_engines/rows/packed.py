"""Packed rows for training: shuffled by a seed, padded to a batch, with documents kept apart."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from nemotron_data.formats.packed import IGNORED, PackedRow, labels_of
from nemotron_engines.modeling.packed import packed_inputs
from nemotron_engines.rows.order import order_of_epoch
from nemotron_engines.rows.token_ids import require_known_ids

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
