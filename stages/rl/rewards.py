"""Rewards: pure functions from a completion and the expected answer to a number.

A completion starts with `<think>` if its prompt opened the thought, so a reward sees the whole answer.

    strict("<think>3+14=17\\n17-5=12</think>12", "12")   1.0
    strict("So it must be 12 apples.", "12")             0.0
    lenient("So it must be 12 apples.", "12")            1.0

A config lists them with weights: `rewards: [{name: strict, weight: 1.0}]`. To add one, write a function here and add a
line to the table below; or, in another package, add an entry point to the group `nemotron.rewards`. As in evaluation,
`nemotron_data.verifier` judges whether an answer is right.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real

from nemotron_data.chat.thought import CLOSE, OPEN, whole_answer
from nemotron_data.verifier import judge as judge_anew
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.system.errors import UserError

MOST_SHOWN = 200
Reward = Callable[[str, str], float]
judge = lru_cache(maxsize=512)(judge_anew)
"""Cached, because completions of a prompt are often equal and several rewards need the same verdict."""


def strict(completion: str, expected: str) -> float:
    """1 if the final answer is right and given cleanly: alone, in a box, after ####, or as "The answer is ..."."""
    return float(judge(completion, expected).strict)


def lenient(completion: str, expected: str) -> float:
    """1 if the final answer has the expected value, in any form and with any words around it."""
    return float(judge(completion, expected).lenient)


def well_formed(completion: str, expected: str) -> float:
    """1 if thinking is opened and closed at most once, in that order, and an answer follows."""
    opened, closed = completion.count(OPEN), completion.count(CLOSE)
    in_order = opened == 0 or completion.find(OPEN) < completion.find(CLOSE)
    return float(opened == closed <= 1 and in_order and bool(completion.rpartition(CLOSE)[2].strip()))


ENVIRONMENT = "environment"
"""The reward from an episode's environment; see `engine.environments`."""


def environment(completion: str, expected: str) -> float:
    """The environment's reward of an episode, which the engine gets from the environment, not from the text."""
    raise UserError("the reward 'environment' is given by environments", "name them in engine.environments")


MODEL = "model"
"""The reward from the reward model in `run.reward_model`."""


def model(completion: str, expected: str) -> float:
    """The score that a reward model gives the answer, which the engine computes of its tokens, not of its text."""
    raise UserError("the reward 'model' is given by a reward model", "name it in run.reward_model")


REWARDS: Registry[Reward] = Registry(
    kind="reward",
    group="nemotron.rewards",
    own={name: f"stages.rl.rewards:{name}" for name in ("strict", "lenient", "well_formed", ENVIRONMENT, MODEL)},
    is_one=callable,
    what="a function (completion, expected) -> float",
)


def rewarded(name: str, prompt: str, completion: str, expected: str) -> float:
    """Score a completion of a rendered prompt with a reward of the table.

    Raises:
        UserError: the reward raises, or does not return a finite number.
    """
    answer = whole_answer(prompt, completion)
    try:
        value = REWARDS.load(name)(answer, expected)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _unusable(name, f"raised {type(error).__name__}: {error}", answer, expected) from error
    try:
        is_number = isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        is_number = False
    if not is_number:
        raise _unusable(name, f"returned {shown(value)}, not a finite number,", answer, expected)
    return float(value)


def _unusable(name: str, did: str, answer: str, expected: str) -> UserError:
    shown = f"{answer[:MOST_SHOWN]!r}{'...' if len(answer) > MOST_SHOWN else ''}"
    what = f"the reward '{name}' {did} for the answer {shown} (expected: {expected[:MOST_SHOWN]!r})"
    return UserError(what, f"fix it in {REWARDS.module_of(name)}: it must return a number for every answer")
