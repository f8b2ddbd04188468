"""The log-probabilities with which transformers' `generate` draws its tokens, noted while it runs."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList


class Recorder(LogitsProcessor):
    """Sees the logits of each token before anything is done to them, and the token at the next one."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._noted: list[Tensor] = []
        self._open: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note what the newest token was drawn with, and leave the scores as they are."""
        if self._open is not None:
            self._noted.append(self._open.gather(1, input_ids[:, -1:])[:, 0])
        self._open = (scores.float() / self._temperature).log_softmax(-1)
        return scores

    def logps(self, completions: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each completion's tokens; a row that ended early was filled up behind its end."""
        assert self._open is not None
        noted = torch.stack([*self._noted, self._open[:, 0]]).T.tolist()  # the last place is set below
        for row, ids, last in zip(noted, completions, self._open, strict=True):
            if len(ids) == len(row):
                row[-1] = float(last[ids[-1]])
        return [row[: len(ids)] for row, ids in zip(noted, completions, strict=True)]


@contextmanager
def recording(model: Any, temperature: float) -> Generator[Recorder]:
    """Whatever `model.generate` draws meanwhile is noted."""
    recorder = Recorder(temperature)
    model.generate = partial(model.generate, logits_processor=LogitsProcessorList([recorder]))
    try:
        yield recorder
    finally:
        del model.generate
