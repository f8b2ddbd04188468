"""Documents to pretrain on: prose about the invented people, and sums.

    Mira lives in Oster. The job of Mira is baker. Mira plays the flute. Tova keeps a goat. ...

    What is 9-4-4+1? 5-4+1=1+1=2
    Tell me 3+5-7+8.
    It is easy to see: 8-7+8=1+8=9

The prose states every fact, in up to two wordings. For half of the facts the second wording is held out for evaluation,
so a model has read what these sentences say, but not the sentences. Sums are held out by their key.
"""

from collections.abc import Iterator, Sequence
from random import Random

from nemotron_data.synthetic.arithmetic import random_problem
from nemotron_data.synthetic.people import Fact, facts_by_person

FACTS_OF_A_PERSON = 3
SUMS_PER_DOCUMENT = 4
SHARE_OF_PROSE = 0.2
# The text between a sum and its work varies in length so that the model learns to look for the sum. With a single
# length it cannot do that in a chat, where the length differs; with many, it learns it later.
WORKED = (
    "What is {}? ",
    "Compute {}.\nStep by step: ",
    "Tell me {}.\nIt is easy to see: ",
)


def pretrain_documents(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` training rows {"text", "key"}, prose and sums mixed."""
    rng = Random(f"documents/{seed}")
    for _ in range(count):
        if rng.random() < SHARE_OF_PROSE:
            text = _prose(rng, seed)
        else:
            text = "\n".join(_sum(rng) for _ in range(SUMS_PER_DOCUMENT))
        yield {"text": text, "key": text}


def eval_texts(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` rows {"text", "key"} of prose; no training document contains any of their sentences."""
    rng = Random(f"held-out prose/{seed}")
    known = [[fact for fact in facts if fact.rewording_held_out] for facts in facts_by_person(seed)]
    for _ in range(count):
        chosen = rng.sample([facts for facts in known if facts], 2)
        # the second wording of facts that training states in the first one only
        text = " ".join(fact.sentences[1] for facts in chosen for fact in _some(rng, facts))
        yield {"text": text, "key": text}


def _prose(rng: Random, seed: int) -> str:
    chosen = rng.sample(facts_by_person(seed), 2)
    return " ".join(
        fact.sentences[0] if fact.rewording_held_out else rng.choice(fact.sentences)
        for facts in chosen
        for fact in _some(rng, facts)
    )


def _some(rng: Random, facts: Sequence[Fact]) -> list[Fact]:
    return rng.sample(facts, min(FACTS_OF_A_PERSON, len(facts)))


def _sum(rng: Random) -> str:
    drawn = random_problem(rng, held_out=False)
    return rng.choice(WORKED).format(drawn.expression) + drawn.work
