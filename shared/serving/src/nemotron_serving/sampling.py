"""Choose the next token: the likeliest, or sampled with the request's own generator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

COLDEST = 1e-6
"""Up to this temperature the likeliest token is taken: a lower one would be 0 in single precision."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a request.

    Attributes:
        temperature: 0 takes the likeliest token each time.
        top_p: sample from the likeliest tokens that together have this share of the probability.
        top_k: sample from this many of the likeliest tokens; 0 for no limit.
        min_p: sample from tokens with at least this share of the likeliest one's probability.
        repetition_penalty: divides the positive logits of tokens that have occurred, and multiplies the negative ones.
        seed: the same seed samples the same answer; None uses a random one.
        logprobs: number of likeliest tokens to return with each token; None returns no log-probabilities.
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
    """Refuse invalid logits; -inf excludes a token.

    Raises:
        ValueError: NaN or infinity.
    """
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ValueError("its logits are not finite: its weights are damaged, or too large for their type")


class Chooser:
    """Choose the tokens of one request.

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
        """Choose the next token.

        Args:
            logits: of the whole vocabulary, on any device.

        Raises:
            ValueError: NaN or infinity.
        """
        logits = logits.float().cpu()
        require_finite(logits)
        sampling = self.sampling
        weighed = self._penalized(logits)
        chosen = int(weighed.argmax()) if sampling.temperature <= COLDEST else self._drawn(weighed)
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
        # subtract the maximum first: a tiny temperature must not produce infinities
        shares = torch.softmax((logits - logits.max()) / self.sampling.temperature, dim=-1)
        sampling = self.sampling
        if sampling.top_p == 1 and not sampling.top_k and not sampling.min_p:
            return int(torch.multinomial(shares, 1, generator=self._generator))
        sorted_shares, order = shares.sort(descending=True, stable=True)
        kept = sorted_shares.clone()
        if sampling.top_k:
            kept[sampling.top_k :] = 0
            kept /= kept.sum()  # top_p refers to the remaining tokens
        if sampling.top_p < 1:
            first = kept[0].clone()
            kept = kept.where(kept.cumsum(0) - kept < sampling.top_p, 0)
            kept[0] = first  # also if top_p is 0 in single precision
        kept[sorted_shares < sampling.min_p * sorted_shares[0]] = 0
        return int(order[torch.multinomial(kept, 1, generator=self._generator)])
