"""Rewards are pure functions: a table of what each gives."""

import pytest

from stages.rl.rewards import REWARDS, exact_match, final_answer, last_number, well_formed


@pytest.mark.parametrize(
    ("completion", "expected", "reward"),
    [
        ("12", "12", 1.0),
        (" 12\n", "12", 1.0),
        ("<think>7+5</think>12", "12", 1.0),
        ("<think>12</think>13", "12", 0.0),
        ("It is 12.", "12", 0.0),
        ("012", "12", 0.0),
        ("", "12", 0.0),
    ],
)
def test_exact_match(completion: str, expected: str, reward: float) -> None:
    assert exact_match(completion, expected) == reward


@pytest.mark.parametrize(
    ("completion", "expected", "reward"),
    [
        ("It is 12.", "12", 1.0),
        ("3 + 4 = 7\n#### 1,200", "1200", 1.0),
        ("<think>12</think> seven", "12", 0.0),
        ("12 or 13", "12", 0.0),
        ("-5", "5", 0.0),
        ("12.0", "12", 1.0),
        ("none", "12", 0.0),
    ],
)
def test_last_number(completion: str, expected: str, reward: float) -> None:
    assert last_number(completion, expected) == reward


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("12", 1.0),
        ("<think>a</think>12", 1.0),
        ("<think>a", 0.0),
        ("a</think>12", 0.0),
        ("</think>a<think>12", 0.0),
        ("<think>a</think><think>b</think>12", 0.0),
        ("<think>a</think>", 0.0),
    ],
)
def test_well_formed(completion: str, reward: float) -> None:
    assert well_formed(completion, "") == reward


def test_the_final_answer_stands_after_the_last_thought() -> None:
    assert final_answer("<think>a</think> b ") == "b"


def test_every_reward_of_the_table_is_between_zero_and_one() -> None:
    assert len(REWARDS.own) >= 3
    for reward in map(REWARDS.load, REWARDS.own):
        assert 0 <= reward("<think>3</think>4", "4") <= 1
