"""Log-probabilities of sampling and of training."""

from pathlib import Path

import torch

from nemotron_engines.exact.support import why_not
from nemotron_prove.cards.measured import NOT_HERE, CannotRun, Measured
from nemotron_prove.cards.measures.tiny import tiny_model
from nemotron_prove.sampled import Sampler
from nemotron_prove.sampling import THEIRS, Count

TOKENS = 1000


def same_bits(family: str, folder: Path) -> Measured:
    """Tokens whose log-probability is another one when it is computed again: see `nemotron prove sampling`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = tiny_model(family, folder)
        if reason := why_not(model):
            raise CannotRun(NOT_HERE, reason)
        ways: dict[str, Count] = {}
        sampler, done = Sampler(model, seed=7), 0
        while done < TOKENS:
            batch = sampler.sample()
            done += sum(len(answer.ids) for answer in batch.answers)
            for way, found in batch.ways():
                ways.setdefault(way, Count()).add(*found)
    finally:
        torch.set_num_threads(threads)
    theirs = {way: count for way, count in ways.items() if way.startswith(THEIRS)}
    ours = {way: count.differing + count.flips for way, count in ways.items() if way not in theirs}
    notes = [f"{way}: {count.differing} of {count.tokens} tokens differ" for way, count in theirs.items()]
    return Measured({f"tokens that differ, {way}": float(count) for way, count in ours.items()}, 0, notes)
