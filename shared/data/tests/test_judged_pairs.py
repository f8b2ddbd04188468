"""The verifier against pairs that are labelled by how they are made, with either answer as the expected one."""

from collections import Counter

import pytest
from judged_pairs import RULES, Pair, pairs

from nemotron_data.verifier import judge


def wrong_verdicts(made: list[Pair]) -> list[tuple[str, str, str]]:
    """Rule, expected and given answer of each; every third answer is given in a box."""
    found = []
    for number, pair in enumerate(made):
        for gold, answer in ((pair.one, pair.other), (pair.other, pair.one)):
            completion = rf"\boxed{{{answer}}}" if number % 3 == 0 else answer
            if judge(completion, gold).lenient is not pair.same:
                found.append((pair.rule, gold, completion))
    return found


def test_a_pair_is_judged_as_it_was_made_whichever_is_expected() -> None:
    made = pairs(6 * len(RULES), seed=1)
    assert not wrong_verdicts(made)
    assert min(Counter(pair.rule for pair in made).values()) >= 4


@pytest.mark.slow
def test_two_thousand_pairs_are_judged_as_they_were_made() -> None:
    made = pairs(2000, seed=2)
    assert not wrong_verdicts(made)
    assert 800 < sum(pair.same for pair in made) < 1200


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (r"\{3,5\}", "(3,5)", False), (r"\{5,3\}", "(3,5)", False), (r"\{3,5\}", r"\{5,3\}", True),
        (r"\{3,5\}", "3 and 5", True), (r"\{3,5\}", "3 or 5", True), ("(3,5)", "3 or 5", False),
        ("(3,5)", "5 and 3", False), ("(3,5)", "(x,y)=(3,5)", True), ("x=3, y=5", "(y,x)=(5,3)", True),
        ("x=3, x=5", "x=3, y=5", False), ("x>3, x<5", "(3,5)", True),
        (r"\{7\}", "7", True), (r"\{7\}", "8", False), (r"\{(1,2),(3,4)\}", r"\{\{1,2\},\{3,4\}\}", False),
        (r"\langle 3,5 \rangle", r"\langle 3,6 \rangle", False), ("1.41421356237309505", r"\sqrt{2}", True),
        (r"\frac{1414213562373095}{10^{15}}", r"\sqrt{2}", False), ("1.41421356237", r"\sqrt{2}", True),
        (r"\frac{x}{2}-10^{-40}", r"\frac{x}{2}-10^{-41}", False), ("x < 1-2^{-60}", "x < 1-2^{-61}", False),
        ("0.5x+1", r"1+\frac{x}{2}", True), ("4(3a-2) = 12a-8", "12a-8", True),
    ],
)  # fmt: skip
def test_what_is_written_decides_what_order_and_brackets_mean(one: str, other: str, same: bool) -> None:
    assert judge(one, other).lenient is same
    assert judge(other, one).lenient is same
