"""Sums of small whole numbers: generate them, key them, and solve them at once or step by step.

    expression  3+5-7+8
    work        8-7+8=1+8=9     the rest after each step
    answer      9
    key         3+5+8-7         (also of 8+3-7+5: the order of the terms does not make a new sum)

All running totals are in 0..MAX_TOTAL. Shorter sums are intermediate steps of longer ones, so they are never held out
and never asked. The key alone decides between training and evaluation, with every seed.
"""

import hashlib
from dataclasses import dataclass
from random import Random


def is_held_out(key: str, one_in: int) -> bool:
    """Whether `key` is one of the `1/one_in` of all keys reserved for evaluation."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


MAX_TERM = 9
MAX_TOTAL = 9
TERMS_OF_A_PROBLEM = 4
HELD_OUT_ONE_IN = 3


@dataclass(frozen=True)
class Sum:
    """A sum as signed terms in written order: 3+14-5 is (3, 14, -5)."""

    terms: tuple[int, ...]

    @property
    def expression(self) -> str:
        return _written(self.terms)

    @property
    def key(self) -> str:
        """Expression with its terms in a canonical order: added ones first, each kind ascending."""
        return _written(sorted(self.terms, key=lambda term: (term < 0, abs(term))))

    @property
    def answer(self) -> str:
        return str(sum(self.terms))

    @property
    def work(self) -> str:
        """The rest of the sum after each step, up to the answer."""
        steps = range(2, len(self.terms) + 1)
        return "=".join(_written((sum(self.terms[:done]), *self.terms[done:])) for done in steps)

    @property
    def held_out(self) -> bool:
        return len(self.terms) == TERMS_OF_A_PROBLEM and is_held_out(self.key, HELD_OUT_ONE_IN)


def random_sum(rng: Random) -> Sum:
    """Draw a sum whose running totals all stay in 0..MAX_TOTAL.

    Large terms seldom fit, so they are preferred where they do: a model must learn these digits, too.
    """
    terms = [rng.randint(1, MAX_TERM)]
    for _ in range(TERMS_OF_A_PROBLEM - 1):
        total = sum(terms)
        fitting = [term for term in range(-MAX_TERM, MAX_TERM + 1) if term and 0 <= total + term <= MAX_TOTAL]
        terms += rng.choices(fitting, weights=[abs(term) for term in fitting])
    return Sum(tuple(terms))


def random_problem(rng: Random, held_out: bool) -> Sum:
    """Draw a sum from one side of the split."""
    while True:
        drawn = random_sum(rng)
        if drawn.held_out == held_out:
            return drawn


def _written(terms: tuple[int, ...] | list[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])
