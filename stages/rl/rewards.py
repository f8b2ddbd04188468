"""Rewards: pure functions from a completion and the expected answer to a number.

A completion starts with `<think>` if its prompt opened the thought, so a reward sees the whole answer.

    strict("<think>3+14=17\\n17-5=12</think>12", "12")   1.0
    strict("So it must be 12 apples.", "12")             0.0
    lenient("So it must be 12 apples.", "12")            1.0

A config lists them with weights: `rewards: [{name: strict, weight: 1.0}]`. One of your own is a function in a file,
`rewards: [{path: my_rewards.py:right_call}]`, or in another package an entry point of the group `nemotron.rewards`. It
may ask for more by the names of its parameters:

    def right_call(completion, expected, prompt, row): ...

`prompt` is the text that the model continued, `row` the prepared row. As in evaluation, `nemotron_data.verifier` judges
whether an answer is right.
"""

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real
from types import MappingProxyType
from typing import Any

from nemotron_data.chat.thought import CLOSE, OPEN, whole_answer
from nemotron_data.formats.rl_rows import PARAMETERS
from nemotron_data.verifier import judge as judge_anew
from nemotron_data.verifier.calls import MARK, calls_in, calls_of, same_calls, tools_by_name
from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.step.own_code import KEYS, OwnFunction
from nemotron_shared.system.errors import UserError

MOST_SHOWN = 200
Reward = Callable[..., float]
GIVEN = KEYS["rewards"]
"""What a reward may ask for by the names of its parameters."""
GIVEN_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
NO_ROW: Mapping[str, Any] = MappingProxyType({})
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


TOOL_CALL = "tool_call"
"""The reward of tool calls, which reads an answer with its control tokens: `<tool_call>` may be one."""


def tool_call(completion: str, expected: str, prompt: str, row: Mapping[str, Any]) -> float:
    """1 if the answer makes the calls that the row expects, by meaning; where it expects a text, if that is right and
    nothing is called.

    `expected` states calls in JSON: {"name": ..., "arguments": {...}}, or a list of them.
    """
    tools = tools_by_name(row.get(PARAMETERS, {}).get("tools"))
    said, wanted = calls_of(completion, tools, bare=MARK not in prompt), calls_in(expected)
    if wanted is None:
        return float(not said and judge(completion, expected).lenient)
    return float(same_calls(said, wanted, tools))


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
    own={
        name: f"stages.rl.rewards:{name}"
        for name in ("strict", "lenient", "well_formed", TOOL_CALL, ENVIRONMENT, MODEL)
    },
    is_one=callable,
    what="a function (completion, expected) -> float",
)


@dataclass(frozen=True)
class Judge:
    """A reward of a config: one of the table, or the function of a file that `path` names."""

    name: str
    path: str | None = None

    @property
    def is_of_a_package(self) -> bool:
        """Whether another package brings it, which may ask others, and cost time and money."""
        return self.path is None and self.name not in REWARDS.own

    @cached_property
    def _own(self) -> OwnFunction | None:
        return None if self.path is None else OwnFunction(self.path)

    @cached_property
    def _function(self) -> tuple[Reward, tuple[str, ...] | None]:
        """The function, and the names of what it asks for; None where it takes completion and expected by place."""
        if self._own is not None:
            return self._own.load(GIVEN)
        found = REWARDS.load(self.name)
        return found, asked_by_name(found)

    def load(self) -> "Judge":
        """The same, once its code is imported; raises UserError where that fails."""
        _ = self._function
        return self

    @property
    def rule(self) -> str:
        """The beginning of what it says of itself; empty where it says nothing."""
        first = (inspect.getdoc(self._function[0]) or "").partition("\n\n")[0]
        return textwrap.shorten(first, MOST_SHOWN, placeholder=" ...")

    @property
    def reads_control_tokens(self) -> bool:
        """Whether control tokens stay in the completion, but for its end."""
        return self.path is None and self.name == TOOL_CALL

    @property
    def asks_for(self) -> tuple[str, ...]:
        """Those of `GIVEN` that it is called with."""
        asked = self._function[1]
        return ("completion", "expected") if asked is None else asked

    def __call__(self, prompt: str, completion: str, expected: str | None, row: Mapping[str, Any] = NO_ROW) -> float:
        """Score a completion of a rendered prompt; raises UserError as `score` does."""
        return self.score(whole_answer(prompt, completion), expected, prompt, row)

    def score(self, answer: str, expected: str | None, prompt: str, row: Mapping[str, Any]) -> float:
        """Score a whole answer, as `whole_answer` gives it.

        Raises:
            UserError: the reward raises, or does not return a finite number.
        """
        function, asked = self._function
        given = {"completion": answer, "expected": expected, "prompt": prompt, "row": row}
        try:
            value = function(answer, expected) if asked is None else function(**{name: given[name] for name in asked})
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            place = f" at {self._own.place_of(error)}" if self._own is not None else ""
            raise self._unusable(f"raised {type(error).__name__}: {error}{place}", answer, expected, row) from error
        try:
            is_number = isinstance(value, Real) and math.isfinite(value)
        except OverflowError:  # an integer beyond all floats
            is_number = False
        if not is_number:
            raise self._unusable(f"returned {shown(value)}, not a finite number,", answer, expected, row)
        return float(value)

    def _unusable(self, did: str, answer: str, expected: str | None, row: Mapping[str, Any]) -> UserError:
        said = f"{answer[:MOST_SHOWN]!r}{'...' if len(answer) > MOST_SHOWN else ''}"
        asked = f"expected: {(expected or '')[:MOST_SHOWN]!r}"
        fields = f"; the row has {', '.join(row)}" if row and "row" in self.asks_for else ""
        what = f"the reward '{self.name}' {did} for the answer {said} ({asked}{fields})"
        place = REWARDS.module_of(self.name) if self._own is None else self._own.written
        return UserError(what, f"fix it in {place}: it must return a number for every answer")


def asked_by_name(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Those of `GIVEN` that a function of a package has parameters for; None if it takes completion and expected
    under other names."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # written in another language, it may not tell
        return None
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    kinds = {one.kind for one in parameters}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds and kinds.isdisjoint(GIVEN_BY_PLACE)
    if any(one.name not in GIVEN and one.default is one.empty for one in named) or not (named or takes_all):
        return None
    if takes_all:
        return tuple(GIVEN)
    return tuple(one.name for one in named if one.name in GIVEN)


def rewarded(name: str, prompt: str, completion: str, expected: str) -> float:
    """Score a completion of a rendered prompt with a reward of the table; raises UserError as a `Judge` does."""
    return Judge(name)(prompt, completion, expected)
