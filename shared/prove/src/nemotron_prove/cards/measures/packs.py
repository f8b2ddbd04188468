"""Packed rows."""

from itertools import pairwise
from pathlib import Path

from nemotron_engines.modeling.packed import packed_inputs
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.tiny import distance, logits_of, tiny_model, tokens

STARTS = [[0, 5, 6, 23], [0, 19]]
LENGTH = 31


def packing(family: str, folder: Path) -> Measured:
    """The largest relative distance between a document's logits in a packed row and alone."""
    model, ids = tiny_model(family, folder), tokens(2, LENGTH)
    together = logits_of(model, ids, **packed_inputs(STARTS, LENGTH), attention_mask=None)
    worst = 0.0
    for row, starts in enumerate(STARTS):
        for start, end in pairwise([*starts, LENGTH]):
            alone = logits_of(model, ids[row : row + 1, start:end])
            worst = max(worst, distance(together[row : row + 1, start:end], alone))
    return Measured({"largest relative distance of logits": worst}, 1e-5)
