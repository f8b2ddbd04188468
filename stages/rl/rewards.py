"""Rewards: pure functions from what the model wrote and what was expected to a number.

    exact_match("<think>3+14=17\\n17-5=12</think>12", "12")   1.0
    exact_match("It is 12.", "12")                            0.0
    last_number("It is 12.", "12")                            1.0

A config names them with weights: `rewards: [{name: exact_match, weight: 1.0}]`. A new one is a function
here and a line in the table below; or, in a package outside this repository, an entry point of the group
`nemotron.rewards`.
"""

import re
from collections.abc import Callable

from nemotron_shared.config.registry import Registry

Reward = Callable[[str, str], float]

THINK_END = "</think>"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def final_answer(completion: str) -> str:
    """What stands after the thinking, without white space around it."""
    return completion.rpartition(THINK_END)[2].strip()


def exact_match(completion: str, expected: str) -> float:
    """1 when the final answer is the expected one, character for character."""
    return float(final_answer(completion) == expected.strip())


def last_number(completion: str, expected: str) -> float:
    """1 when the last number of the final answer equals the expected number, whatever words stand around it."""
    found = NUMBER.findall(final_answer(completion))
    wanted = NUMBER.findall(expected)
    return float(bool(found) and bool(wanted) and _value(found[-1]) == _value(wanted[-1]))


def well_formed(completion: str, expected: str) -> float:
    """1 when thinking is opened and closed at most once, in that order, and an answer follows."""
    opened, closed = completion.count("<think>"), completion.count(THINK_END)
    in_order = opened == 0 or completion.find("<think>") < completion.find(THINK_END)
    return float(opened == closed <= 1 and in_order and bool(final_answer(completion)))


def _value(number: str) -> float:
    return float(number.replace(",", ""))


REWARDS: Registry[Reward] = Registry(
    kind="reward",
    group="nemotron.rewards",
    own={name: f"stages.rl.rewards:{name}" for name in ("exact_match", "last_number", "well_formed")},
)
