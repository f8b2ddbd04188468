"""Rewards are pure functions: a table of what each gives. What is right is tested with the verifier."""

import pytest

from stages.rl.rewards import REWARDS, lenient, strict, well_formed


@pytest.mark.parametrize(
    ("completion", "expected", "both"),
    [
        ("12", "12", (1.0, 1.0)),
        (" 12\n", "12", (1.0, 1.0)),
        ("<think>7+5</think>12", "12", (1.0, 1.0)),
        ("<think>12</think>13", "12", (0.0, 0.0)),
        ("<think>so 12", "12", (0.0, 0.0)),
        ("So it is 12 apples.", "12", (0.0, 1.0)),
        ("3 + 4 = 7\n#### 1,200", "1200", (1.0, 1.0)),
        ("12 or 13", "12", (0.0, 0.0)),
        ("-5", "5", (0.0, 0.0)),
        ("", "12", (0.0, 0.0)),
    ],
)
def test_strict_and_lenient(completion: str, expected: str, both: tuple[float, float]) -> None:
    assert (strict(completion, expected), lenient(completion, expected)) == both


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


def test_every_reward_of_the_table_is_between_zero_and_one() -> None:
    assert len(REWARDS.own) >= 3
    for reward in map(REWARDS.load, REWARDS.own):
        assert 0 <= reward("<think>3</think>4", "4") <= 1
