"""How the next token is chosen: the likeliest, or drawn with a generator of the request's own."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

COLDEST = 1e-6
"""A temperature below it would be 0 in single precision, and draws the likeliest token anyway."""


@dataclass(frozen=True)
class Sampling:
    """What a request asks of its answer.

    Attributes:
        temperature: 0 takes the likeliest token each time.
        top_p: draw from the likeliest tokens that have this share of the probability together.
        seed: the same seed draws the same answer; None draws another one each time.
        logprobs: how many of the likeliest tokens to tell with each token; None tells nothing.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None


class Token(NamedTuple):
    """One token of an answer; log-probabilities are the model's own, before temperature and top_p."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def require_finite(logits: torch.Tensor) -> None:
    """Refuse logits that nothing can be chosen by; -inf excludes a token.

    Raises:
        ValueError: they are no numbers.
    """
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ValueError("its logits are not finite: its weights are damaged, or too large for their type")


class Chooser:
    """Chooses the tokens of one request."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> Token:
        """The next token.

        Args:
            logits: of the whole vocabulary, on any device.

        Raises:
            ValueError: they are no numbers, so that nothing can be chosen.
        """
        logits = logits.float().cpu()
        require_finite(logits)
        sampling = self.sampling
        chosen = int(logits.argmax()) if sampling.temperature == 0 else self._drawn(logits)
        if sampling.logprobs is None:
            return Token(chosen)
        known = torch.log_softmax(logits, dim=-1)
        best = known.topk(min(sampling.logprobs, len(known)))
        return Token(chosen, float(known[chosen]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))

    def _drawn(self, logits: torch.Tensor) -> int:
        # the largest is taken away first: a tiny temperature must not make infinities of them
        shares = torch.softmax((logits - logits.max()) / max(self.sampling.temperature, COLDEST), dim=-1)
        if self.sampling.top_p < 1:
            sorted_shares, order = shares.sort(descending=True, stable=True)
            before = sorted_shares.cumsum(0) - sorted_shares
            kept = sorted_shares.where(before < self.sampling.top_p, 0)
            kept[0] = sorted_shares[0]  # also where top_p would be 0 in single precision
            return int(order[torch.multinomial(kept, 1, generator=self._generator)])
        return int(torch.multinomial(shares, 1, generator=self._generator))
