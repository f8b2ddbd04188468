"""Pack sequences of different lengths into bins of one size, to reduce padding in training batches.

    pack(np.array([6, 4, 7, 3]), 10, "best_fit_decreasing", seed=0).lists()  ->  [[2, 3], [0, 1]]

best_fit_decreasing:  longest first, each into the fullest bin with enough room. Fewest bins.
first_fit_decreasing: an alias; first fit in that order needs as many bins.
first_fit_shuffle:    in a seeded random order, each into the first bin with enough room. Mixes lengths within a bin.
concatenative:        in the given order; a sequence that does not fit starts the next bin. Most bins, order kept.

All but `concatenative` shuffle the bins at the end, because the algorithms produce them ordered by length.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nemotron_shared.system.errors import UserError, did_you_mean

WORD_BITS = 60  # a Python integer of up to 60 bits fits two machine digits


@dataclass(frozen=True, slots=True)
class Bins:
    """Bin b holds the sequences `order[bounds[b] : bounds[b + 1]]`; int64 arrays of sequences and of bins + 1."""

    order: np.ndarray
    bounds: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def lists(self) -> list[list[int]]:
        """Each bin as a list of indices."""
        return [part.tolist() for part in np.split(self.order, self.bounds[1:-1])] if len(self) else []


def pack(lengths: np.ndarray, pack_size: int, algorithm: str, seed: int) -> Bins:
    """Pack sequences into bins of indices into `lengths` (tokens, 1-D), at most `pack_size` tokens each.

    Deterministic. Raises `UserError` for an unknown algorithm and for a sequence that is empty or longer than
    `pack_size`.
    """
    if algorithm not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise UserError(f"unknown packing algorithm '{algorithm}'", did_you_mean(algorithm, ALGORITHMS, known))
    outside = np.flatnonzero((lengths < 1) | (lengths > pack_size))
    if outside.size:
        what = f"sequence {outside[0]} has {lengths[outside[0]]} tokens, outside 1 to {pack_size}"
        raise UserError(what, "cut or drop it before packing, or enlarge pack_size")
    return ALGORITHMS[algorithm](lengths.astype(np.int64), pack_size, np.random.Generator(np.random.PCG64(seed)))


def _best_fit_decreasing(lengths: np.ndarray, pack_size: int, random: np.random.Generator) -> Bins:
    order = np.argsort(-lengths, kind="stable")
    numbers = np.array(_best_fit(lengths[order], pack_size), np.int64)
    return _shuffled(order, numbers, random)


def _first_fit_shuffle(lengths: np.ndarray, pack_size: int, random: np.random.Generator) -> Bins:
    order = random.permutation(len(lengths))
    return _shuffled(order, np.array(_first_fit(lengths[order].tolist(), pack_size), np.int64), random)


def _concatenative(lengths: np.ndarray, pack_size: int, random: np.random.Generator) -> Bins:
    bounds, space = [0], pack_size
    for index, length in enumerate(lengths.tolist()):
        if length > space:
            bounds.append(index)
            space = pack_size
        space -= length
    return Bins(np.arange(len(lengths)), np.array([*bounds, len(lengths)][: len(lengths) + 1], np.int64))


ALGORITHMS: dict[str, Callable[[np.ndarray, int, np.random.Generator], Bins]] = {
    "best_fit_decreasing": _best_fit_decreasing,
    "first_fit_decreasing": _best_fit_decreasing,
    "first_fit_shuffle": _first_fit_shuffle,
    "concatenative": _concatenative,
}


def _shuffled(order: np.ndarray, numbers: np.ndarray, random: np.random.Generator) -> Bins:
    """Bins in random order. `order[i]` is the sequence placed i-th, `numbers[i]` its bin."""
    sizes = np.bincount(numbers)
    mixed = random.permutation(len(sizes))
    place = np.empty_like(mixed)
    place[mixed] = np.arange(len(sizes))
    by_bin = np.argsort(place[numbers], kind="stable")
    return Bins(order[by_bin], np.concatenate([[0], np.cumsum(sizes[mixed])]).astype(np.int64))


def _best_fit(falling: np.ndarray, pack_size: int) -> list[int]:
    """Bin for each length, sorted in decreasing order: the one with the least sufficient space.

    Open bins are kept on stacks by remaining space; the smallest sufficient space is the next set bit. Equal lengths
    are placed together: the bin that takes one of them is also the fullest that can take the next, so it gets as many
    as fit, and so do all bins of its stack.
    """
    numbers: list[int] = []
    opened = 0
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    spaces = _BitSet(pack_size + 1)
    starts = np.flatnonzero(np.diff(falling, prepend=0)).tolist()
    for start, end in pairwise([*starts, len(falling)]):
        length, left = int(falling[start]), end - start
        while left:
            space = spaces.next_from(length)
            stack = waiting[space] if space >= 0 else None
            space = pack_size if stack is None else space
            each = min(space // length, left)
            count = left // each if stack is None else min(left // each, len(stack))
            if stack is None:
                chosen = list(range(opened, opened + count))
                opened += count
            else:
                chosen = stack[-count:]
                del stack[-count:]
                if not stack:
                    spaces.remove(space)
            numbers += chosen if each == 1 else [number for number in chosen for _ in range(each)]
            left -= count * each
            rest = space - each * length
            if rest:
                waiting[rest] += chosen
                spaces.add(rest)
    return numbers


class _BitSet:
    """Set of numbers from 0 to size - 1, in words of 60 bits; a summary has bit w set if word w is not zero."""

    def __init__(self, size: int) -> None:
        self.words = [0] * (size // WORD_BITS + 1)
        self.summary = 0

    def add(self, number: int) -> None:
        word, bit = divmod(number, WORD_BITS)
        self.words[word] |= 1 << bit
        self.summary |= 1 << word

    def remove(self, number: int) -> None:
        word, bit = divmod(number, WORD_BITS)
        self.words[word] ^= 1 << bit
        if not self.words[word]:
            self.summary ^= 1 << word

    def next_from(self, number: int) -> int:
        """Smallest member >= `number`, or -1."""
        word, bit = divmod(number, WORD_BITS)
        rest = self.words[word] >> bit
        if rest:
            return number + _lowest_bit(rest)
        later = self.summary >> (word + 1)
        if not later:
            return -1
        word += 1 + _lowest_bit(later)
        return word * WORD_BITS + _lowest_bit(self.words[word])


def _lowest_bit(number: int) -> int:
    return (number & -number).bit_length() - 1


def _first_fit(lengths: list[int], pack_size: int) -> list[int]:
    """Bin for each length: the first one with enough space.

    `space` is a complete binary tree in an array: node i has the children 2i and 2i + 1, the leaves are all bins that
    could be opened, and each node holds the largest space below it.
    """
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    space = [pack_size] * (2 * leaves)
    numbers = []
    for length in lengths:
        node = 1
        while node < leaves:
            node *= 2
            if space[node] < length:
                node += 1
        numbers.append(node - leaves)
        left = space[node] - length
        space[node] = left
        while node > 1:
            other = space[node ^ 1]
            node >>= 1
            left = max(left, other)
            if space[node] == left:
                break
            space[node] = left
    return numbers
