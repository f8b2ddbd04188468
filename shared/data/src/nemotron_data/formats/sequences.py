"""Token sequences with loss masks, as the workers of data preparation write them; `packed` puts them into rows.

They are flat files, which are memory-mapped, so any total size can be packed with little memory:

    ids.bin      11 12 13 21 22  2 14 15 23  2     int32
    mask.bin      0  0  0  1  1  1  0  0  1  1     uint8: was this token written by the assistant?
    lengths.npy   6           4                    int32
    splits.npy    0           0                    uint8: index in SPLITS

Apart from `packed`, because workers and dry runs do without pyarrow, which takes a moment to import.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from nemotron_data.split import SPLITS


class SequenceWriter:
    """Append sequences to the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lengths: list[np.ndarray] = []
        self._splits: list[np.ndarray] = []
        self._ids = (folder / "ids.bin").open("wb")
        self._mask = (folder / "mask.bin").open("wb")

    def __enter__(self) -> Self:
        return self

    def add(self, ids: np.ndarray, mask: np.ndarray, lengths: np.ndarray, splits: np.ndarray) -> None:
        """Append sequences: flat ids and mask, and for each sequence its length and its index in SPLITS."""
        self._ids.write(np.ascontiguousarray(ids, np.int32).data)
        self._mask.write(np.ascontiguousarray(mask, np.uint8).data)
        self._lengths.append(lengths.astype(np.int32))
        self._splits.append(splits.astype(np.uint8))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._ids, self._mask:  # a full disk may only raise on close
            pass
        if kind is None:
            np.save(self._folder / "lengths.npy", np.concatenate([np.empty(0, np.int32), *self._lengths]))
            np.save(self._folder / "splits.npy", np.concatenate([np.empty(0, np.uint8), *self._splits]))


@dataclass(frozen=True)
class Sequences:
    """Sequences of several folders, concatenated in the order of the folders.

    Attributes:
        lengths: int64, tokens of each sequence.
        splits: uint8, index of each in SPLITS.
        folder: int32, index of the folder of each sequence.
        low: int64, start of the sequence in that folder's files.
        ids: one int32 array for each folder.
        masks: one uint8 array for each folder.
    """

    lengths: np.ndarray
    splits: np.ndarray
    folder: np.ndarray
    low: np.ndarray
    ids: Sequence[np.ndarray]
    masks: Sequence[np.ndarray]

    @classmethod
    def open(cls, folders: Sequence[Path]) -> "Sequences":
        """Map the files that `SequenceWriter`s wrote."""
        lengths = [np.load(folder / "lengths.npy").astype(np.int64) for folder in folders]
        return cls(
            lengths=_joined(lengths, np.int64),
            splits=_joined([np.load(folder / "splits.npy") for folder in folders], np.uint8),
            folder=np.repeat(np.arange(len(folders), dtype=np.int32), [len(part) for part in lengths]),
            low=_joined([np.cumsum(part) - part for part in lengths], np.int64),
            ids=[_mapped(folder / "ids.bin", np.int32) for folder in folders],
            masks=[_mapped(folder / "mask.bin", np.uint8) for folder in folders],
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def of_split(self, split: str) -> "Sequences":
        """Sequences of one split, in the same order."""
        chosen = np.flatnonzero(self.splits == SPLITS.index(split))
        parts = (array[chosen] for array in (self.lengths, self.splits, self.folder, self.low))
        return Sequences(*parts, ids=self.ids, masks=self.masks)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids and mask of the chosen sequences, in the order of `indices`."""
        low = self.low[indices]
        places = list(
            zip(self.folder[indices].tolist(), low.tolist(), (low + self.lengths[indices]).tolist(), strict=True)
        )
        ids = np.concatenate([self.ids[folder][start:end] for folder, start, end in places])
        return ids, np.concatenate([self.masks[folder][start:end] for folder, start, end in places])


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.empty(0, kind), *parts])


def _mapped(path: Path, kind: type) -> np.ndarray:
    """Map the whole file as a plain array, because slices of np.memmap are slower."""
    if not path.stat().st_size:
        return np.empty(0, kind)
    return np.asarray(np.memmap(path, kind, mode="r"))
