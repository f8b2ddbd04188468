"""The likeliest continuation of many prompts at once, for models with a direct step.

    found = likeliest(model, Direct(model), [[1, 5, 9], [1, 7]], most=24, ended=lambda ids: ids[-1] == 11)

An answer that has ended leaves the batch, whereas `model.generate` of transformers continues with all rows until the
last one has ended.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nemotron_engines.decoding.direct import Direct
from nemotron_engines.decoding.general import prefill


@torch.inference_mode()
def likeliest(
    model: Any, sequences: Direct, prompts: Sequence[Sequence[int]], most: int, ended: Callable[[list[int]], bool]
) -> list[list[int]]:
    """The continuation of each prompt by at most `most` tokens, the one that ended it included.

    Args:
        sequences: of this model; all that they hold is forgotten.
        ended: whether a continuation ends with its newest token.
    """
    found: list[list[int]] = [[] for _ in prompts]
    live, logits = _read(model, sequences, prompts)
    while live:
        tokens = logits.argmax(-1).tolist()
        for number, token in zip(live, tokens, strict=True):
            found[number].append(token)
        rows = [row for row, number in enumerate(live) if len(found[number]) < most and not ended(found[number])]
        if len(rows) < len(live):
            live, tokens = [live[row] for row in rows], [tokens[row] for row in rows]
            if not live:
                break
            sequences.keep(rows)
        logits = sequences.step(torch.tensor(tokens))
    return found


def _read(model: Any, sequences: Direct, prompts: Sequence[Sequence[int]]) -> tuple[list[int], Tensor]:
    """Prefill, one length after the other: the number of each sequence's prompt, and the logits after it."""
    sequences.clear()
    of_length: dict[int, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        of_length[len(prompt)].append(number)
    read = {length: prefill(model, [prompts[one] for one in numbers]) for length, numbers in of_length.items()}
    sequences.add(*((memory, length) for length, (_, memory) in read.items()))
    return [number for numbers in of_length.values() for number in numbers], torch.cat(
        [one for one, _ in read.values()]
    )
