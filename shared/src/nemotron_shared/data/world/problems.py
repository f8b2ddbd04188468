"""Questions with a checkable answer, for RL and for evaluation."""

from collections.abc import Iterator
from random import Random

from nemotron_shared.data.world.arithmetic import random_problem
from nemotron_shared.data.world.chats import sum_question


def sums(seed: int, count: int, held_out: bool) -> Iterator[dict[str, str]]:
    rng = Random(f"problems/{seed}/{held_out}")
    seen = set()
    while len(seen) < count:
        drawn = random_problem(rng, held_out)
        if drawn.key not in seen:
            seen.add(drawn.key)
            yield {"question": sum_question(drawn.expression), "expected_answer": drawn.answer, "key": drawn.key}
