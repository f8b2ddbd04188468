"""Means over the sampled tokens of a step, of whatever passes and processes."""

from collections import Counter

import torch
from torch import Tensor


class TokenMeans:
    """Sums over the passes of a step."""

    def __init__(self) -> None:
        self._tokens = 0
        self._sums = Counter[str]()

    def add(self, mask: Tensor, **values: Tensor) -> None:
        """Count a pass; the mask and each value are (rows, tokens). Every pass of a step has the same values."""
        self._tokens += int(mask.sum())
        self._sums.update({name: float(value.detach().double()[mask].sum()) for name, value in values.items()})

    def take(self) -> dict[str, float]:
        """The means of all processes together, and begin anew; none where no token counts. Every process calls this."""
        names = sorted(self._sums)
        whole = torch.tensor([self._tokens, *(self._sums[name] for name in names)], dtype=torch.float64)
        self.__init__()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(whole)
        tokens, *sums = whole.tolist()
        return {name: total / tokens for name, total in zip(names, sums, strict=True)} if tokens else {}
