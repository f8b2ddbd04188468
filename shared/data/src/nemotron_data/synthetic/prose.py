"""Documents to pretrain on: prose about the invented people, and sums.

    Mira lives in Oster. The job of Mira is baker. Mira plays the flute. Tova keeps a goat. ...

    5+4+9+1: 9 18 19
    8+9-2+1=16
    17-5=12

Prose names every fact. Whole prose documents are held out for bits per byte, sums by their key.
"""

from collections.abc import Iterator
from random import Random

from nemotron_data.synthetic.arithmetic import random_problem, random_sum
from nemotron_data.synthetic.people import SENTENCES, people
from nemotron_data.synthetic.split import is_held_out

HELD_OUT_ONE_IN = 20
SUMS_PER_DOCUMENT = 4
SHARE_OF_PROSE = 0.3
SHARE_OF_TABLES = 0.1
SHARE_OF_STEPS = 0.5


def pretrain_documents(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` rows {"text", "key"} of the training side, prose and sums mixed."""
    rng = Random(f"documents/{seed}")
    for _ in range(count):
        if rng.random() < SHARE_OF_PROSE:
            text = _prose(rng, seed, held_out=False)
        else:
            text = "\n".join(_sum(rng) for _ in range(SUMS_PER_DOCUMENT))
        yield {"text": text, "key": text}


def eval_texts(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` rows {"text", "key"} of prose that no training document repeats as a whole."""
    rng = Random(f"held-out prose/{seed}")
    for _ in range(count):
        text = _prose(rng, seed, held_out=True)
        yield {"text": text, "key": text}


def _prose(rng: Random, seed: int, held_out: bool) -> str:
    while True:
        text = " ".join(
            rng.choice(SENTENCES[kind]).format(name=person.name, value=person.facts[kind])
            for person in rng.sample(people(seed), 2)
            for kind in rng.sample(sorted(person.facts), 3)
        )
        if is_held_out(text, HELD_OUT_ONE_IN) == held_out:
            return text


def _sum(rng: Random) -> str:
    style = rng.random()
    if style < SHARE_OF_TABLES:
        drawn = random_sum(rng, 2)
        return f"{drawn.expression}={drawn.answer}"
    drawn = random_problem(rng, held_out=False)
    if style < SHARE_OF_TABLES + SHARE_OF_STEPS:
        return f"{drawn.expression}: {drawn.totals}"
    return f"{drawn.expression}={drawn.answer}"
