"""Pretraining documents: Megatron bin/idx pairs, listed in blend.json and memory-mapped.

{"train": ["0.7", "train/web/shard_000000", "0.3", "train/code/shard_000000"], "valid": null, "test": null}
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from nemotron_app.inspect.examples import DataFile, Example, Split, TokenSequence
from nemotron_data.formats.bin_idx import SPLITS, IndexedDataset, data_set_of, read_blend

OPEN_AT_ONCE = 4  # an index is loaded completely, so keep only a few of them


class DocumentSplit(Split):
    """Documents of one split, across all its bin/idx pairs: (weight in the blend, path without suffix)."""

    def __init__(self, name: str, pairs: Sequence[tuple[float | None, Path]], root: Path) -> None:
        self.name = name
        self.files = []
        self._prefixes = [prefix for _, prefix in pairs]
        self._names: list[str] = []
        self._lengths: Counter[int] = Counter()
        self._open = lru_cache(OPEN_AT_ONCE)(IndexedDataset)
        for weight, prefix in pairs:
            dataset = self._open(prefix)
            values, counts = np.unique(dataset.lengths, return_counts=True)
            self._lengths.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            self._names.append(prefix.relative_to(root).as_posix() if prefix.is_relative_to(root) else str(prefix))
            data_set = data_set_of(self._names[-1], name)
            self.files.append(DataFile(data_set, weight, len(dataset), int(dataset.num_tokens)))
        self._firsts = np.cumsum([0, *(file.examples for file in self.files)])

    def lengths(self) -> Counter[int]:
        """See the base class."""
        return self._lengths

    def at(self, indices: Sequence[int]) -> list[Example]:
        """See the base class."""
        numbers = (np.searchsorted(self._firsts, indices, side="right") - 1).tolist()
        return [
            self._example(number, index - int(self._firsts[number]))
            for number, index in zip(numbers, indices, strict=True)
        ]

    def scan(self, budget: int) -> Iterator[Example]:
        """Documents of the chosen lengths. Exact duplicates have equal lengths, so they are always chosen together."""
        chosen = np.array(sorted(self._chosen(budget)))
        left = budget
        for number, prefix in enumerate(self._prefixes):
            for index in np.flatnonzero(np.isin(self._open(prefix).lengths, chosen)).tolist():
                example = self._example(number, index)
                left -= example.tokens
                yield example
                if left < 0:
                    return

    def sample_note(self, budget: int) -> str | None:
        """See the base class."""
        if self.tokens <= budget:
            return None
        return f"documents of {len(self._chosen(budget)):,} of {len(self._lengths):,} lengths"

    def _chosen(self, budget: int) -> set[int]:
        """Lengths in a pseudo-random but deterministic order, until their documents hold `budget` tokens."""
        found, tokens = set(), 0
        for length in sorted(self._lengths, key=lambda length: (length * 2_654_435_761) % 2**32):
            found.add(length)
            tokens += length * self._lengths[length]
            if tokens > budget:
                break
        return found

    def _example(self, number: int, index: int) -> Example:
        """Document `index` of the pair with this number."""
        ids = self._open(self._prefixes[number])[index]
        place = f"{self._names[number]}, document {index}"
        problem = None if len(ids) else "a document without tokens"
        return Example(self.name, int(self._firsts[number]) + index, place, [TokenSequence(ids)], problem=problem)


def blend_splits(blend: Path) -> list[DocumentSplit]:
    """The non-empty splits of a blend.json, training first."""
    found = read_blend(blend)
    return [DocumentSplit(name, found[name], blend.parent) for name in SPLITS if name in found]
