r"""Conversations to fine-tune on, in the OpenAI message format.

    {"key": "3+14-5", "messages": [
        {"role": "user", "content": "What is 3+14-5?"},
        {"role": "assistant", "reasoning_content": "17 12", "content": "12"}]}

Those who wrote the demonstrations mostly answered a sum at once; only some wrote their steps down.
A model that imitates them learns the habit of the many. That thinking pays is left for RL to find.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemotron_shared.data.world.arithmetic import random_problem
from nemotron_shared.data.world.people import facts

SHARE_OF_FACTS = 0.2
SHARE_OF_THOUGHT = 0.3


def chats(seed: int, count: int) -> Iterator[dict[str, Any]]:
    rng = Random(f"chats/{seed}")
    known = facts(seed, held_out=False)
    for _ in range(count):
        yield _about_fact(rng, known) if rng.random() < SHARE_OF_FACTS else _about_sum(rng)


def sum_question(expression: str) -> str:
    return f"What is {expression}?"


def _about_fact(rng, known):
    fact = rng.choice(known)
    return _row(fact.key, fact.question, {"content": fact.value})


def _about_sum(rng):
    drawn = random_problem(rng, held_out=False)
    thought = {"reasoning_content": drawn.totals} if rng.random() < SHARE_OF_THOUGHT else {}
    return _row(drawn.key, sum_question(drawn.expression), {**thought, "content": drawn.answer})


def _row(key, question, answer):
    return {
        "key": key,
        "messages": [{"role": "user", "content": question}, {"role": "assistant", **answer}],
    }
