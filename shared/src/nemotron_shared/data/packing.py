"""Put sequences of different lengths into bins of one size, so that little of a training batch is padding.

    pack(np.array([6, 4, 7, 3]), pack_size=10, algorithm="best_fit_decreasing", seed=0)  ->  [[2, 3], [0, 1]]

best_fit_decreasing: longest first, each into the fullest bin that still has room. Fewest bins.
first_fit_shuffle:   in a seeded random order, each into the first bin that still has room. Lengths mix within a bin.
concatenative:       in the given order; a sequence that does not fit starts the next bin. Most bins, order kept.

The bins of the first two are shuffled at the end, because finished bins hold their lengths in order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from nemotron_shared.errors import UserError, did_you_mean

Bins = list[list[int]]
WORD_BITS = 60  # a Python integer of up to 60 bits stays two machine digits


def pack(lengths: np.ndarray, pack_size: int, algorithm: str, seed: int) -> Bins:
    """Bins of indices into `lengths` (tokens, 1-D); each index comes once and no bin holds more than `pack_size`.

    The same arguments give the same bins. Raises `UserError` for an unknown algorithm and for a sequence that is
    empty or longer than `pack_size`.
    """
    if algorithm not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise UserError(f"unknown packing algorithm '{algorithm}'", did_you_mean(algorithm, ALGORITHMS, known))
    outside = np.flatnonzero((lengths < 1) | (lengths > pack_size))
    if outside.size:
        what = f"sequence {outside[0]} has {lengths[outside[0]]} tokens, outside 1 to {pack_size}"
        raise UserError(what, "cut or drop it before packing, or enlarge pack_size")
    return ALGORITHMS[algorithm](lengths, pack_size, np.random.Generator(np.random.PCG64(seed)))


def _best_fit_decreasing(lengths: np.ndarray, pack_size: int, random: np.random.Generator) -> Bins:
    order = np.argsort(-lengths.astype(np.int64), kind="stable")
    return _shuffled(_best_fit(order.tolist(), lengths.tolist(), pack_size), random)


def _first_fit_shuffle(lengths: np.ndarray, pack_size: int, random: np.random.Generator) -> Bins:
    order = random.permutation(len(lengths))
    return _shuffled(_first_fit(order.tolist(), lengths.tolist(), pack_size), random)


def _concatenative(lengths: np.ndarray, pack_size: int, random: np.random.Generator) -> Bins:
    bins: Bins = []
    space = 0
    for index, length in enumerate(lengths.tolist()):
        if length > space:
            bins.append([])
            space = pack_size
        bins[-1].append(index)
        space -= length
    return bins


ALGORITHMS: dict[str, Callable[[np.ndarray, int, np.random.Generator], Bins]] = {
    "best_fit_decreasing": _best_fit_decreasing,
    "first_fit_shuffle": _first_fit_shuffle,
    "concatenative": _concatenative,
}


def _shuffled(bins: Bins, random: np.random.Generator) -> Bins:
    return [bins[i] for i in random.permutation(len(bins)).tolist()]


def _best_fit(order: Iterable[int], lengths: list[int], pack_size: int) -> Bins:
    """Each index into the bin with the least space that suffices, the latest such bin among equals.

    Open bins wait on stacks by their remaining space. Finding the smallest sufficient space is a search for the next
    set bit, so each index costs a fixed number of integer operations, however many bins are open.
    """
    bins: Bins = []
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    spaces = _BitSet(pack_size + 1)
    for index in order:
        length = lengths[index]
        space = spaces.next_from(length)
        if space < 0:
            space, number = pack_size, len(bins)
            bins.append([])
        else:
            number = waiting[space].pop()
            if not waiting[space]:
                spaces.remove(space)
        bins[number].append(index)
        if space > length:
            waiting[space - length].append(number)
            spaces.add(space - length)
    return bins


class _BitSet:
    """Numbers from 0 to size - 1, in words of 60 bits; a summary has bit w set when word w is not zero."""

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
        """The smallest member >= `number`, or -1."""
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


def _first_fit(order: list[int], lengths: list[int], pack_size: int) -> Bins:
    """Each index into the earliest bin with enough space.

    `space` is a complete binary tree in an array: node i has the children 2i and 2i + 1, the leaves are all bins that
    could be opened, and each node holds the largest space below it.
    """
    leaves = 1 << max(len(order) - 1, 0).bit_length()
    space = [pack_size] * (2 * leaves)
    bins: Bins = []
    for index in order:
        length = lengths[index]
        node = 1
        while node < leaves:
            node = 2 * node if space[2 * node] >= length else 2 * node + 1
        if node - leaves == len(bins):
            bins.append([])
        bins[node - leaves].append(index)
        space[node] -= length
        while node > 1:
            node //= 2
            space[node] = max(space[2 * node], space[2 * node + 1])
    return bins
