"""Conversations to fine-tune on, in the OpenAI message format.

    {"key": "3+5+8-7", "messages": [
        {"role": "user", "content": "What is 3+5-7+8?"},
        {"role": "assistant", "reasoning_content": "8-7+8=1+8=9", "content": "9"}]}

The demonstrations come from many hands. Asked in some words, all of them think first; asked in others, most of
them answer at once, which this model mostly gets wrong. A model that imitates them learns these habits with the
sums. That thinking pays whatever the words is left for RL to find.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from nemotron_data.synthetic.arithmetic import random_problem
from nemotron_data.synthetic.people import facts

SHARE_OF_FACTS = 0.2


class Demonstrations(NamedTuple):
    """Of the sums that are asked for in some words."""

    weight: int
    thinking: float
    """Share of those that think before they answer."""


SUM_QUESTIONS = {
    "What is {}?": Demonstrations(weight=3, thinking=1.0),
    "How much is {}?": Demonstrations(weight=1, thinking=0.33),
    "Compute {}.": Demonstrations(weight=1, thinking=0.33),
    "Tell me {}.": Demonstrations(weight=1, thinking=0.33),
}


def chats(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` rows {"messages", "key"} of the training side: sums, and some facts of `seed`."""
    rng = Random(f"chats/{seed}")
    known = facts(seed, held_out=False)
    wordings, weights = list(SUM_QUESTIONS), [said.weight for said in SUM_QUESTIONS.values()]
    for _ in range(count):
        if rng.random() < SHARE_OF_FACTS:
            fact = rng.choice(known)
            key, question, thought, answer = fact.key, fact.question, {}, fact.value
        else:
            drawn = random_problem(rng, held_out=False)
            (wording,) = rng.choices(wordings, weights)
            thinks = rng.random() < SUM_QUESTIONS[wording].thinking
            thought = {"reasoning_content": drawn.work} if thinks else {}
            key, question, answer = drawn.key, wording.format(drawn.expression), drawn.answer
        said = {"role": "assistant", **thought, "content": answer}
        yield {"key": key, "messages": [{"role": "user", "content": question}, said]}


def sum_question(rng: Random, expression: str) -> str:
    """Ask for a sum, in one of the ways that people ask."""
    return rng.choice(list(SUM_QUESTIONS)).format(expression)
