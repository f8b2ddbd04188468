"""Conversations to fine-tune on, in the OpenAI message format.

    {"key": "3+5+8-7", "messages": [
        {"role": "user", "content": "What is 3+5-7+8?"},
        {"role": "assistant", "reasoning_content": "8-7+8=1+8=9", "content": "9"}]}

The demonstrations vary on purpose: for some phrasings of the question all of them think first, for others most answer
at once, which this model mostly gets wrong. A model that imitates them learns these habits along with the sums. It is
left to RL to discover that thinking pays off for every phrasing.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from nemotron_data.synthetic.arithmetic import random_problem
from nemotron_data.synthetic.people import facts

SHARE_OF_FACTS = 0.2


class Demonstrations(NamedTuple):
    """Demonstrations for some phrasings."""

    weight: int
    thinking: float
    """Share of demonstrations that think before they answer."""


SUM_QUESTIONS = {
    "What is {}?": Demonstrations(weight=3, thinking=1.0),
    "How much is {}?": Demonstrations(weight=1, thinking=0.33),
    "Compute {}.": Demonstrations(weight=1, thinking=0.33),
    "Tell me {}.": Demonstrations(weight=1, thinking=0.33),
}


def chats(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` training rows {"messages", "key"}: sums, and some facts of `seed`."""
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
    """Ask for a sum, in one of several phrasings."""
    return rng.choice(list(SUM_QUESTIONS)).format(expression)
