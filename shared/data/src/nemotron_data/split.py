"""Assign rows to splits by their key alone.

A row keeps its split if other rows are added or removed, if files are reordered, and on any number of workers. Rows
with the same question get the same split, so a copy of a held-out question is never trained on.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from nemotron_shared.system.errors import UserError

SPLITS = ("train", "valid", "test")


def normalise_key(key: str) -> str:
    """Fold differences that a reader would ignore: compatibility forms, letter case and white space.

    >>> normalise_key("  What is\\n２+2? ")
    'what is 2+2?'
    """
    folded = unicodedata.normalize("NFKC", key).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def bucket(key: str, salt: str) -> float:
    """Number in [0, 1), uniform over normalised keys and independent between salts."""
    return _fraction_of(f"{salt}\0{normalise_key(key)}")


def document_bucket(text: str) -> float:
    """The same of a document by its exact text: no two documents that differ go together."""
    return _fraction_of(text)


def _fraction_of(text: str) -> float:
    number = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return (number >> 11) * 2.0**-53  # a float holds 53 bits: with all 64 the largest would round up to 1.0


def share_of_last(buckets: Sequence[float], wanted: int, most: int) -> tuple[float, int]:
    """The share of the last part of a split that gets at least `wanted` of these rows, at most `most`.

    Rows with one key go together, so it may be fewer, or none.

    Args:
        buckets: of each row, as `bucket` gives it.

    Returns:
        The share, with as few decimals as tell the rows apart, and how many of these rows it gets.

    >>> share_of_last([0.1, 0.42, 0.53, 0.9], wanted=2, most=2)
    (0.5, 2)
    """
    found = 0
    places = sorted(Counter(buckets).items(), reverse=True)
    below = 1.0
    for place, count in places:
        if found >= wanted or found + count > most:
            break
        found, below = found + count, place
    if not found:
        return 0.0, 0
    above = max((place for place in buckets if place < below), default=0.0)
    shares = (round(1 - (above + below) / 2, digits) for digits in range(1, 17))
    return next(share for share in shares if above < 1 - share <= below), found


@dataclass(frozen=True, slots=True)
class Split:
    """Named parts of a data set, such as `Split({"train": 0.98, "valid": 0.01, "test": 0.01}, salt="sft-1")`.

    The order of the parts does not matter. Raises `UserError` unless the fractions sum to 1.
    """

    fractions: dict[str, float]
    salt: str
    _bounds: tuple[tuple[float, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, fraction in self.fractions.items():
            if not 0 <= fraction <= 1:  # also false for nan
                raise UserError(f"split '{name}': {fraction} is not a fraction", "give a number from 0 to 1")
        total = math.fsum(self.fractions.values())
        if abs(total - 1) > 1e-9:
            raise UserError(
                f"split fractions sum to {total:g}, not 1: {self.fractions}", "change one so that they sum to 1"
            )
        # upper end of each nonempty part, sorted by name; the last takes the rest
        names = sorted(name for name, fraction in self.fractions.items() if fraction > 0)
        ends = [math.fsum(self.fractions[name] for name in names[: i + 1]) for i in range(len(names) - 1)]
        object.__setattr__(self, "_bounds", tuple(zip([*ends, 1.0], names, strict=True)))

    @property
    def only(self) -> str | None:
        """The part that everything belongs to, if there is only one."""
        return self._bounds[0][1] if len(self._bounds) == 1 else None

    def of(self, key: str) -> str:
        """Name of the part that `key` belongs to."""
        return self._part_at(bucket(key, self.salt))

    def of_document(self, text: str) -> str:
        """Name of the part that a document belongs to, by its exact text: equal documents stay together."""
        return self._part_at(document_bucket(text))

    def _part_at(self, place: float) -> str:
        return next(name for end, name in self._bounds if place < end)
