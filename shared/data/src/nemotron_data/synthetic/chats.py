"""Conversations to fine-tune on, in the OpenAI message format.

    {"key": "3+14-5", "messages": [
        {"role": "user", "content": "How much is 3+14-5?"},
        {"role": "assistant", "content": "It comes to 12."}]}

The demonstrations come from many hands. Asked in some words, most of them give the bare number; asked in
others, most of them make a sentence of it. A model that imitates them learns these habits with the sums.
That a checker accepts the bare number only is left for RL to find, and the sums that are still wrong, too.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemotron_data.synthetic.arithmetic import random_problem
from nemotron_data.synthetic.people import facts

SHARE_OF_FACTS = 0.2
SHARE_OF_THOUGHT = 0.1
# How sums are asked for, and the share of demonstrations that answer each with the bare number.
SUM_QUESTIONS = {"What is {}?": 0.8, "How much is {}?": 0.25, "Compute {}.": 0.8, "Tell me {}.": 0.25}
SENTENCES = ("That makes {}.", "It comes to {}.")


def chats(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` rows {"messages", "key"} of the training side: sums, and some facts of `seed`."""
    rng = Random(f"chats/{seed}")
    known = facts(seed, held_out=False)
    for _ in range(count):
        if rng.random() < SHARE_OF_FACTS:
            fact = rng.choice(known)
            key, question, answer = fact.key, fact.question, {"content": fact.value}
        else:
            drawn = random_problem(rng, held_out=False)
            wording = rng.choice(list(SUM_QUESTIONS))
            bare = rng.random() < SUM_QUESTIONS[wording]
            said = drawn.answer if bare else rng.choice(SENTENCES).format(drawn.answer)
            thought = {"reasoning_content": drawn.totals} if rng.random() < SHARE_OF_THOUGHT else {}
            key, question, answer = drawn.key, wording.format(drawn.expression), {**thought, "content": said}
        yield {"key": key, "messages": [{"role": "user", "content": question}, {"role": "assistant", **answer}]}


def sum_question(rng: Random, expression: str) -> str:
    """Ask for a sum, in one of the ways that people ask."""
    return rng.choice(list(SUM_QUESTIONS)).format(expression)
