"""What is other in a rehearsal of GRPO: every second completion of a prompt has a reward that is higher by 1.

Random weights never answer rightly, and where all completions of a prompt have one reward, a step computes no gradient
and shows nothing. Rewards of this repository are computed all the same, to see them take the answers; those of other
packages count 0 and are not called, because they may ask others, and cost time and money.
"""

from collections.abc import Generator
from contextlib import contextmanager

from stages.rl.engines.trl.trainer import JudgedTrainer


@contextmanager
def rewards_apart() -> Generator[None]:
    """Let trainings inside this block be rehearsals."""
    JudgedTrainer.rehearses = True
    try:
        yield
    finally:
        JudgedTrainer.rehearses = False
