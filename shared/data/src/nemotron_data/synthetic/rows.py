"""Rows for every stage: documents to pretrain on, conversations to fine-tune on, questions to answer.

    Mira lives in Oster. The job of Mira is baker. ... What is 9-4-4+1? 5-4+1=1+1=2
    {"key": "3+5+8-7", "messages": [
        {"role": "user", "content": "What is 3+5-7+8?"},
        {"role": "assistant", "reasoning_content": "8-7+8=1+8=9", "content": "9"}]}
    {"question": "What is 3+5-7+8?", "expected_answer": "9", "key": "3+5+8-7"}
    {"prompt": "Compute 3+5-7+8.", "chosen": [an answer with its work], "rejected": [a wrong guess], "key": "3+5+8-7"}
    {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": ["Oster", "Kelby", "Solm", "Ravno"],
     "answer": 0, "key": "town of Mira"}

The prose states every fact, in up to two wordings. For half of the facts the second wording is held out for evaluation,
so a model has read what these sentences say, but not the sentences. Sums are held out by their key. A stem is the
sentence that states the fact, up to its value, for a base model to complete.

The demonstrations vary on purpose: for some phrasings of the question all of them think first, for others most answer
at once, which this model mostly gets wrong. A model that imitates them learns these habits along with the sums. It is
left to RL to discover that thinking pays off for every phrasing.
"""

from collections.abc import Iterator, Sequence
from itertools import starmap
from random import Random
from typing import Any, NamedTuple

from nemotron_data.synthetic.arithmetic import MAX_TOTAL, Sum, random_problem
from nemotron_data.synthetic.people import VALUES, Fact, facts, facts_by_person
from nemotron_shared.system.errors import UserError

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


NUM_CHOICES = 4
# After this many draws without a new question, hardly any are left.
MOST_REPEATS = 10_000


def problems(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` different sums to train on."""
    return starmap(_problem, _sums(Random(f"problems/{seed}"), count, held_out=False))


def pairs(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` different sums to train on, with a better and a worse answer: worked out, and a wrong guess."""
    rng = Random(f"pairs/{seed}")
    for question, drawn in _sums(rng, count, held_out=False):
        wrong = rng.choice([number for number in range(MAX_TOTAL + 1) if str(number) != drawn.answer])
        yield {
            "prompt": question,
            "chosen": [{"role": "assistant", "reasoning_content": drawn.work, "content": drawn.answer}],
            "rejected": [{"role": "assistant", "content": str(wrong)}],
            "key": drawn.key,
        }


def eval_problems(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` different sums that occur in no training row of any seed."""
    return starmap(_problem, _sums(Random(f"eval problems/{seed}"), count, held_out=True))


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


def _problem(question: str, drawn: Sum) -> dict[str, str]:
    return {"question": question, "expected_answer": drawn.answer, "key": drawn.key}


def _sums(rng: Random, count: int, held_out: bool) -> Iterator[tuple[str, Sum]]:
    """`count` different sums, each with its question."""
    seen: set[str] = set()
    repeats = 0
    while len(seen) < count:
        drawn = random_problem(rng, held_out)
        if drawn.key not in seen:
            repeats = 0
            seen.add(drawn.key)
            yield sum_question(rng, drawn.expression), drawn
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
