"""How the next token is chosen: the likeliest, or drawn with a generator of the request's own."""

from collections.abc import Sequence
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
        top_k: draw from this many of the likeliest tokens; 0 does not count.
        min_p: draw from tokens that have this share of the likeliest one's probability.
        repetition_penalty: divides the positive logits of tokens that are there already, and multiplies the negative.
        seed: the same seed draws the same answer; None draws another one each time.
        logprobs: how many of the likeliest tokens to tell with each token; None tells nothing.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


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
    """Chooses the tokens of one request.

    Args:
        prompt: the ids before them.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = ()) -> None:
        self.sampling = sampling
        self._there = set(prompt)
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
        weighed = self._penalized(logits)
        chosen = int(weighed.argmax()) if sampling.temperature == 0 else self._drawn(weighed)
        self._there.add(chosen)
        if sampling.logprobs is None:
            return Token(chosen)
        known = torch.log_softmax(logits, dim=-1)
        best = known.topk(min(sampling.logprobs, len(known)))
        return Token(chosen, float(known[chosen]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))

    def _penalized(self, logits: torch.Tensor) -> torch.Tensor:
        penalty = self.sampling.repetition_penalty
        if penalty == 1:
            return logits
        there = torch.tensor([token for token in self._there if token < len(logits)], dtype=torch.long)
        found, weighed = logits[there], logits.clone()
        weighed[there] = torch.where(found > 0, found / penalty, found * penalty)
        return weighed

    def _drawn(self, logits: torch.Tensor) -> int:
        # the largest is taken away first: a tiny temperature must not make infinities of them
        shares = torch.softmax((logits - logits.max()) / max(self.sampling.temperature, COLDEST), dim=-1)
        sampling = self.sampling
        if sampling.top_p == 1 and not sampling.top_k and not sampling.min_p:
            return int(torch.multinomial(shares, 1, generator=self._generator))
        sorted_shares, order = shares.sort(descending=True, stable=True)
        kept = sorted_shares.clone()
        if sampling.top_k:
            kept[sampling.top_k :] = 0
            kept /= kept.sum()  # top_p is of those that are left
        if sampling.top_p < 1:
            first = kept[0].clone()
            kept = kept.where(kept.cumsum(0) - kept < sampling.top_p, 0)
            kept[0] = first  # also where top_p would be 0 in single precision
        kept[sorted_shares < sampling.min_p * sorted_shares[0]] = 0
        return int(order[torch.multinomial(kept, 1, generator=self._generator)])
