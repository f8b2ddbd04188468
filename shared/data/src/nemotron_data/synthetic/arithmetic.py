"""Sums of small whole numbers: drawn, named by a key, answered at once or by running totals.

    expression  7+5-3+8
    totals      12 9 17
    answer      17
    key         5+7+8-3     (also of 8+7-3+5: the order of the terms does not make a new sum)

No running total leaves 0..MAX_TOTAL. Sums of two terms are the tables that everything else rests on:
they are never held out and never asked.
"""

from dataclasses import dataclass
from itertools import accumulate
from random import Random

from nemotron_data.synthetic.split import is_held_out

MAX_TERM = 9
MAX_TOTAL = 30
TERMS_OF_A_PROBLEM = (4,)
HELD_OUT_ONE_IN = 6


@dataclass(frozen=True)
class Sum:
    """A sum as its signed terms, in the order in which they are written: 3+14-5 is (3, 14, -5)."""

    terms: tuple[int, ...]

    @property
    def expression(self) -> str:
        return _written(self.terms)

    @property
    def key(self) -> str:
        """The expression with its terms in a canonical order: added ones first, each kind ascending."""
        return _written(sorted(self.terms, key=lambda term: (term < 0, abs(term))))

    @property
    def answer(self) -> str:
        return str(sum(self.terms))

    @property
    def totals(self) -> str:
        """The total after the second term, after the third, and so on: the work shown."""
        return " ".join(str(total) for total in list(accumulate(self.terms))[1:])

    @property
    def held_out(self) -> bool:
        return len(self.terms) > 2 and is_held_out(self.key, HELD_OUT_ONE_IN)


def random_sum(rng: Random, num_terms: int) -> Sum:
    """Draw a sum whose running totals all stay in 0..MAX_TOTAL."""
    terms = [rng.randint(1, MAX_TERM)]
    for _ in range(num_terms - 1):
        total = sum(terms)
        terms.append(rng.choice([n for n in range(-MAX_TERM, MAX_TERM + 1) if n and 0 <= total + n <= MAX_TOTAL]))
    return Sum(tuple(terms))


def random_problem(rng: Random, held_out: bool) -> Sum:
    """Draw a sum of more than two terms from one side of the split."""
    while True:
        drawn = random_sum(rng, rng.choice(TERMS_OF_A_PROBLEM))
        if drawn.held_out == held_out:
            return drawn


def _written(terms: tuple[int, ...] | list[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])
