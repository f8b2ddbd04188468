"""Expected answers, counted while data is prepared: of what kind they are, and how many no verifier could decide.

count_gold(reader.counts, "1,234")                   counts["answers: number"] += 1
require_decidable(totals.counts, most=0.05)          raises where more than 5 % cannot be decided
"""

from collections import Counter
from collections.abc import Mapping

from nemotron_data.verifier.kinds import expected
from nemotron_data.verifier.symbols import readable
from nemotron_shared.errors import UserError

ANSWERS, UNDECIDABLE = "answers: ", "answers: undecidable"
MOST_WORDS = 12
"""A longer text is a sentence or a proof, which nobody writes again word by word."""


def count_gold(counts: Counter[str], gold: str) -> None:
    """Count an expected answer under its kind."""
    about = expected(gold)
    decidable = not about.is_nothing and (
        about.kind in ("number", "choice")
        or (about.kind == "math" and readable(about.text))
        or (about.kind == "text" and len(about.text.split()) <= MOST_WORDS)
    )
    counts[f"{ANSWERS}{about.kind}" if decidable else UNDECIDABLE] += 1


def require_decidable(counts: Mapping[str, int], most: float) -> None:
    """Stop where too many answers could never be found right.

    Args:
        most: largest share of them, from 0 to 1.

    Raises:
        UserError: there are more.
    """
    number = sum(count for name, count in counts.items() if name.startswith(ANSWERS))
    wrong = counts.get(UNDECIDABLE, 0)
    if number and wrong / number > most:
        raise UserError(
            f"{wrong:,} of {number:,} expected answers ({wrong / number:.0%}) are of a kind that no verifier can"
            f" decide: empty, longer than {MOST_WORDS} words, or mathematics that cannot be read",
            "name the answer's place with data_prep.answer_field or data_prep.answer_pattern,"
            " or raise data_prep.max_lost",
        )
