"""Pretraining documents: Megatron bin/idx pairs, found through blend.json and read as memory maps.

{"train": ["0.7", "train/web/shard_000000", "0.3", "train/code/shard_000000"], "valid": null, "test": null}
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from nemotron_app.inspect.examples import Example, Part, TokenSequence
from nemotron_data.formats.bin_idx import SPLITS, IndexedDataset, read_blend

OPEN_AT_ONCE = 4  # an index is read whole, so only a few of them are kept


class DocumentSplit:
    """Documents of one split, over all its bin/idx pairs."""

    def __init__(self, name: str, entries: Sequence[tuple[float | None, Path]], root: Path) -> None:
        self.name = name
        self._prefixes = [prefix for _, prefix in entries]
        self._names = [_relative(prefix, root) for prefix in self._prefixes]
        self._lengths: Counter[int] = Counter()
        self._open = lru_cache(OPEN_AT_ONCE)(IndexedDataset)
        self.parts = [self._part(number, weight) for number, (weight, _) in enumerate(entries)]
        self._firsts = np.cumsum([0, *(part.examples for part in self.parts)])

    def _part(self, number: int, weight: float | None) -> Part:
        pair = self._open(self._prefixes[number])
        values, counts = np.unique(pair.lengths, return_counts=True)
        self._lengths.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        return Part(data_set_of(self._names[number], self.name), weight, len(pair), pair.num_tokens)

    def lengths(self) -> Counter[int]:
        """Tokens of each document, from the indices."""
        return self._lengths

    def at(self, indices: Sequence[int]) -> list[Example]:
        """Documents by their number in the split."""
        places = [int(np.searchsorted(self._firsts, index, side="right")) - 1 for index in indices]
        return [
            self._example(part, index - int(self._firsts[part])) for part, index in zip(places, indices, strict=True)
        ]

    def scan(self, budget: int) -> Iterator[Example]:
        """Documents of the chosen lengths: exact duplicates have the same length, so they are chosen together."""
        chosen = np.array(sorted(self._chosen(budget)))
        left = budget
        for part, prefix in enumerate(self._prefixes):
            for index in np.flatnonzero(np.isin(self._open(prefix).lengths, chosen)).tolist():
                example = self._example(part, index)
                left -= len(example.sequences[0].ids)
                yield example
                if left < 0:
                    return

    def sample_note(self, budget: int) -> str | None:
        """How the documents of `scan` are chosen."""
        if sum(part.tokens or 0 for part in self.parts) <= budget:
            return None
        return f"documents of {len(self._chosen(budget)):,} of {len(self._lengths):,} lengths"

    def _chosen(self, budget: int) -> set[int]:
        """Lengths in an order that looks random but is always the same, until they hold `budget` tokens."""
        found, tokens = set(), 0
        for length in sorted(self._lengths, key=lambda length: (length * 2_654_435_761) % 2**32):
            found.add(length)
            tokens += length * self._lengths[length]
            if tokens > budget:
                break
        return found

    def _example(self, part: int, index: int) -> Example:
        ids = self._open(self._prefixes[part])[index]
        place = f"{self._names[part]}, document {index}"
        problem = None if len(ids) else "a document without tokens"
        return Example(self.name, int(self._firsts[part]) + index, place, [TokenSequence(ids)], problem=problem)


def blend_splits(blend: Path) -> list[DocumentSplit]:
    """The splits of a blend.json that hold something, training first."""
    found = read_blend(blend)
    return [DocumentSplit(name, found[name], blend.parent) for name in SPLITS if name in found]


def data_set_of(relative: str, split: str) -> str:
    """`train/web/shard_000003` and `train/web` are parts of the data set `web`."""
    parts = relative.split("/")
    inner = parts[1:] if parts[0] == split and len(parts) > 1 else parts
    return "/".join(inner[:-1]) if len(inner) > 1 and inner[-1].startswith("shard_") else "/".join(inner)


def _relative(prefix: Path, root: Path) -> str:
    return prefix.relative_to(root).as_posix() if prefix.is_relative_to(root) else str(prefix)
