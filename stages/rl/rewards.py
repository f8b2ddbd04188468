"""Rewards: pure functions from what the model wrote and what was expected to a number.

What the model wrote begins with `<think>` where its prompt has opened the thought: a reward sees the whole answer.

    strict("<think>3+14=17\\n17-5=12</think>12", "12")   1.0
    strict("So it must be 12 apples.", "12")             0.0
    lenient("So it must be 12 apples.", "12")            1.0

A config names them with weights: `rewards: [{name: strict, weight: 1.0}]`. A new one is a function here and a line in
the table below; or, in a package outside this repository, an entry point of the group `nemotron.rewards`. What counts
as right is judged by `nemotron_data.verifier`, as in evaluation.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real

from nemotron_data.chat.thought import CLOSE, OPEN, whole_answer
from nemotron_data.verifier import judge as judge_anew
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.errors import UserError

MOST_SHOWN = 200
Reward = Callable[[str, str], float]
judge = lru_cache(maxsize=512)(judge_anew)
"""Completions of one prompt are often alike, and two rewards may ask for the same verdict."""


def strict(completion: str, expected: str) -> float:
    """1 when the final answer is right and given cleanly: alone, in a box, after ####, or as "The answer is ..."."""
    return float(judge(completion, expected).strict)


def lenient(completion: str, expected: str) -> float:
    """1 when the final answer has the expected value, whatever its form and the words around it."""
    return float(judge(completion, expected).lenient)


def well_formed(completion: str, expected: str) -> float:
    """1 when thinking is opened and closed at most once, in that order, and an answer follows."""
    opened, closed = completion.count(OPEN), completion.count(CLOSE)
    in_order = opened == 0 or completion.find(OPEN) < completion.find(CLOSE)
    return float(opened == closed <= 1 and in_order and bool(completion.rpartition(CLOSE)[2].strip()))


ENVIRONMENT = "environment"
"""The reward that an environment gives an episode; see `engine.environments`."""


def environment(completion: str, expected: str) -> float:
    """What the environment of an episode gave it, which no text tells: the engine asks the environment."""
    raise UserError("the reward 'environment' is given by environments", "name them in engine.environments")


REWARDS: Registry[Reward] = Registry(
    kind="reward",
    group="nemotron.rewards",
    own={name: f"stages.rl.rewards:{name}" for name in ("strict", "lenient", "well_formed", ENVIRONMENT)},
    is_one=callable,
    what="a function (completion, expected) -> float",
)


def rewarded(name: str, prompt: str, completion: str, expected: str) -> float:
    """What a reward of the table gives a completion of a rendered prompt.

    Raises:
        UserError: it fails, or gives what is no finite number.
    """
    answer = whole_answer(prompt, completion)
    try:
        value = REWARDS.load(name)(answer, expected)
    except UserError:
        raise
    except Exception as error:
        raise _unusable(name, f"ended with {type(error).__name__}: {error}", answer, expected) from error
    if not isinstance(value, Real) or not math.isfinite(value):
        raise _unusable(name, f"gave {shown(value)}, which is no finite number,", answer, expected)
    return float(value)


def _unusable(name: str, did: str, answer: str, expected: str) -> UserError:
    shown = f"{answer[:MOST_SHOWN]!r}{'...' if len(answer) > MOST_SHOWN else ''}"
    what = f"the reward '{name}' {did} for the answer {shown} (expected: {expected[:MOST_SHOWN]!r})"
    return UserError(what, f"correct it in {REWARDS.module_of(name)}: it must give every answer a number")
