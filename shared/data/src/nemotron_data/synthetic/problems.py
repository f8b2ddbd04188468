"""Questions with verifiable answers, for RL and for held-out evaluation.

    {"question": "What is 3+5-7+8?", "expected_answer": "9", "key": "3+5+8-7"}
    {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": ["Oster", "Kelby", "Solm", "Ravno"],
     "answer": 0, "key": "town of Mira"}

A stem is the sentence that states the fact, up to its value, for a base model to complete.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemotron_data.synthetic.arithmetic import random_problem
from nemotron_data.synthetic.chats import sum_question
from nemotron_data.synthetic.people import VALUES, Fact, facts
from nemotron_shared.errors import UserError

NUM_CHOICES = 4
# After this many draws without a new question, hardly any are left.
MOST_REPEATS = 10_000


def problems(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` different sums to train on."""
    return _sums(Random(f"problems/{seed}"), count, held_out=False)


def eval_problems(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` different sums that occur in no training row of any seed."""
    return _sums(Random(f"eval problems/{seed}"), count, held_out=True)


def eval_choices(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` four-choice questions about facts that pretraining states and no training row asks for.

    Raises:
        UserError: not enough such facts.
    """
    rng = Random(f"eval choices/{seed}")
    known = facts(seed, held_out=True)
    if count > len(known):
        raise UserError(
            f"{count} multiple-choice questions wanted, the synthetic data has {len(known)}", "ask for fewer"
        )
    return (_choice(rng, fact) for fact in rng.sample(known, count))


def _sums(rng: Random, count: int, held_out: bool) -> Iterator[dict[str, str]]:
    seen: set[str] = set()
    repeats = 0
    while len(seen) < count:
        drawn = random_problem(rng, held_out)
        if drawn.key not in seen:
            repeats = 0
            seen.add(drawn.key)
            yield {"question": sum_question(rng, drawn.expression), "expected_answer": drawn.answer, "key": drawn.key}
        elif (repeats := repeats + 1) == MOST_REPEATS:
            raise UserError(f"the synthetic data has hardly more than {len(seen)} different problems", "ask for fewer")


def _choice(rng: Random, fact: Fact) -> dict[str, Any]:
    wrong = [value for value in VALUES[fact.kind] if value != fact.value]
    choices = [fact.value, *rng.sample(wrong, NUM_CHOICES - 1)]
    rng.shuffle(choices)
    return {
        "question": fact.question,
        "stem": fact.stem,
        "choices": choices,
        "answer": choices.index(fact.value),
        "key": fact.key,
    }
