"""Our rows as data sets for Automodel's loader, which finds these functions through `_target_` in its config.

A packed row of fine-tuning takes the form of Automodel's NEAT packing:

    input_ids       11 12 13 14 15   0
    labels          12 13 -  15 -   -       aligned with the logits: Automodel's loss does not shift them
    position_ids     0  1  2  0  1   0
    attention_mask   1  1  1  2  2   0      number of the document, 0 for padding
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
from nemotron_data.formats.packed import IGNORED, PackedRow, labels_of, read_packed
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.rows import PADDING, BlendedRows, DocumentRows, PackedRows


class NeatRows(Dataset):
    """Rows in the order of `PackedRows`, each a mapping of int64 tensors of length `length`."""

    def __init__(self, rows: PackedRows, length: int) -> None:
        self.rows = rows
        self.length = length

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return neat_row(self.rows[index], self.length)


def neat_row(row: PackedRow, length: int) -> dict[str, torch.Tensor]:
    """One row, padded to `length`."""
    size = len(row.input_ids)
    sizes = np.diff(np.append(row.seq_start_id, size))
    columns = {
        "input_ids": (row.input_ids, PADDING),
        "labels": (labels_of(row), IGNORED),
        "position_ids": (np.concatenate([np.arange(part) for part in sizes]), 0),
        "attention_mask": (np.repeat(np.arange(1, len(sizes) + 1), sizes), 0),
    }
    padding = (0, length - size)
    return {
        name: torch.from_numpy(np.pad(values.astype(np.int64), padding, constant_values=fill))
        for name, (values, fill) in columns.items()
    }


@cache
def packed_file(path: Path) -> list[PackedRow]:
    """All rows of a packed file, read once in a process: for the loader, and for counting tokens."""
    return read_packed(path)


def packed_rows(path: str, num_rows: int, seed: int) -> NeatRows:
    """The first `num_rows` rows of the shuffled, endless stream over a packed Parquet file."""
    file = Path(path)
    rows = packed_file(file)
    shuffled = PackedRows(rows, num_rows, seed, vocabulary_beside(file), file)
    return NeatRows(shuffled, max(len(row.input_ids) for row in rows))


def vocabulary_beside(file: Path) -> int | None:
    """Highest id plus one of the tokenizer next to prepared data; None if there is none."""
    folder = file.parent / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        return None
    return max(TokenizerFolder(folder).tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def document_rows(blend: str, part: str, seq_length: int, num_rows: int, seed: int) -> BlendedRows:
    """`num_rows` rows of `seq_length` tokens from one split ("train", "valid") of a blend, in its proportions."""
    entries, size = read_blend(Path(blend))[part], vocabulary_beside(Path(blend))
    parts = [DocumentRows([IndexedDataset(prefix)], seq_length, num_rows, seed, size) for _, prefix in entries]
    return BlendedRows(parts, [weight for weight, _ in entries], num_rows)


def collate(rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """A batch, cut to its longest row, through Automodel's own collator."""
    from nemo_automodel.components.datasets.utils import neat_packed_collater  # ty: ignore[import-not-found]

    used = max(int((row["attention_mask"] > 0).sum()) for row in rows)
    batch = neat_packed_collater([{name: values[:used] for name, values in row.items()} for row in rows])
    # Automodel omits it if no row holds two documents; its Mamba layers would then misread the 4-D mask.
    batch["_packed_seq_ids"] = torch.stack([row["attention_mask"][:used] for row in rows])
    return batch
