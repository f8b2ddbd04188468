"""Sampling settings, and the choice of the next token for all requests of a batch at once.

    choosers = [Chooser(Sampling(24, temperature=0.8, seed=1), prompt), Chooser(Sampling(24))]
    tokens = choose(choosers, logits)              # (2, vocabulary) -> [Token(id=17, ...), Token(id=4, ...)]

Each request has its own random generator, and the choice for a row does not depend on the other rows. So the same
seed gives the same answer whatever the other requests are, up to the last bits of the logits, which depend on the size
of the batch. A token is drawn as `torch.multinomial` draws one: each share of the probability is divided by an
exponential random number, and the largest quotient wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nemotron_serving.grammar import Constraint

COLDEST = 1e-6
"""Up to this temperature the likeliest token is taken: a lower one would be 0 in single precision."""
CANDIDATES = 256
"""Number of the likeliest tokens that are sorted first; where they do not suffice, the whole vocabulary is."""
AT_ONCE = 8
"""Requests whose numbers are drawn together: those of more leave the caches of a processor between two passes."""
ROUNDING = 1e-6
"""More than sums of shares are rounded."""


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
        ignore_eos: continue to `max_tokens`, through tokens that end an answer.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return self.temperature <= COLDEST

    @property
    def narrowed(self) -> bool:
        """Whether some tokens are excluded before one is drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


class Token(NamedTuple):
    """One token of an answer; log-probabilities are the model's own, before temperature and top_p."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Chooser:
    """What one request needs for the choice of its tokens.

    Args:
        prompt: the ids before them.
        constraint: what they must be.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), constraint: Constraint | None = None) -> None:
        self.sampling, self._constraint = sampling, constraint
        self._there = set(prompt)
        self.generator = torch.Generator()
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed)

    def weighed(self, logits: Tensor) -> Tensor:
        """The logits (vocabulary) with penalties, and -inf for tokens that are not allowed here."""
        penalty = self.sampling.repetition_penalty
        if penalty != 1:
            there = torch.tensor([token for token in self._there if token < len(logits)], dtype=torch.long)
            found, logits = logits[there], logits.clone()
            logits[there] = torch.where(found > 0, found / penalty, found * penalty)
        return logits if self._constraint is None else self._constraint.allowed(logits)

    def take(self, chosen: int, logits: Tensor) -> Token:
        """Note the chosen token; `logits` (vocabulary) are the model's own."""
        if self._constraint is not None:
            self._constraint.take(chosen)
        self._there.add(chosen)
        if self.sampling.logprobs is None:
            return Token(chosen)
        known = torch.log_softmax(logits, dim=-1)
        best = known.topk(min(self.sampling.logprobs, len(known)))
        return Token(chosen, float(known[chosen]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))

    @property
    def changes_logits(self) -> bool:
        """Whether `weighed` returns other logits than it gets."""
        return self._constraint is not None or self.sampling.repetition_penalty != 1


def require_finite(logits: Tensor) -> None:
    """Refuse invalid logits; -inf excludes a token.

    Raises:
        ValueError: NaN or infinity.
    """
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ValueError("its logits are not finite: its weights are damaged, or too large for their type")


def choose(choosers: Sequence[Chooser], logits: Tensor) -> list[Token | Exception]:
    """The next token of each request, or the reason why this one has none.

    Args:
        logits: (requests, vocabulary), on any device.
    """
    logits = logits.float().cpu()
    failed: dict[int, Exception] = {}
    weighed = _weighed(choosers, logits, failed)
    ids = _chosen(choosers, weighed)
    found: list[Token | Exception] = []
    for row, (chooser, chosen) in enumerate(zip(choosers, ids, strict=True)):
        try:
            found.append(failed[row] if row in failed else chooser.take(chosen, logits[row]))
        except Exception as error:  # of this request alone
            found.append(error)
    return found


def _weighed(choosers: Sequence[Chooser], logits: Tensor, failed: dict[int, Exception]) -> Tensor:
    """The logits after each request's penalties and constraints; requests without usable ones are put into `failed`."""
    weighed = logits
    if any(chooser.changes_logits for chooser in choosers):
        weighed = logits.clone()
    finite = torch.isfinite(logits.amax(-1)).tolist()
    for row, chooser in enumerate(choosers):
        try:
            if not finite[row]:
                require_finite(logits[row])
            if chooser.changes_logits:
                weighed[row] = chooser.weighed(logits[row])
                if bool(torch.isnan(weighed[row]).any()) or bool(torch.isposinf(weighed[row]).any()):
                    raise ValueError("its logits are not finite after the penalties: they are too small or too large")
        except Exception as error:  # of this request alone
            failed[row] = error
    return weighed


def _chosen(choosers: Sequence[Chooser], weighed: Tensor) -> list[int]:
    """Ids for all rows of `weighed` (requests, vocabulary)."""
    drawing = [row for row, chooser in enumerate(choosers) if not chooser.sampling.greedy]
    if len(drawing) == len(choosers):
        return _drawn(choosers, weighed).tolist()
    ids = weighed.argmax(-1)
    if drawing:
        ids[drawing] = _drawn([choosers[row] for row in drawing], weighed[drawing])
    return ids.tolist()


def _drawn(choosers: Sequence[Chooser], logits: Tensor) -> Tensor:
    """Ids (requests) drawn from logits (requests, vocabulary)."""
    parts = range(0, len(choosers), AT_ONCE)
    return torch.cat([_drawn_at_once(choosers[at : at + AT_ONCE], logits[at : at + AT_ONCE]) for at in parts])


def _drawn_at_once(choosers: Sequence[Chooser], logits: Tensor) -> Tensor:
    """The same for a few requests."""
    temperatures = torch.tensor([chooser.sampling.temperature for chooser in choosers])
    # subtract the maximum first: a tiny temperature must not produce infinities
    shares = torch.softmax((logits - logits.amax(-1, keepdim=True)).div_(temperatures[:, None]), dim=-1)
    noise = exponential(choosers, shares.shape[1])
    narrow = [row for row, chooser in enumerate(choosers) if chooser.sampling.narrowed]
    if not narrow:
        return shares.div_(noise).argmax(-1)
    ids = torch.zeros(len(choosers), dtype=torch.long)
    if len(narrow) < len(choosers):
        ids = (shares / noise).argmax(-1)
    falling = Falling(shares[narrow] if len(narrow) < len(choosers) else shares)
    for place, row in enumerate(narrow):
        sampling = choosers[row].sampling
        values, order = falling.row(place, sampling)
        ids[row] = order[int(_kept(values, sampling, shares.shape[1]).div_(noise[row, : len(values)]).argmax())]
    return ids


def exponential(choosers: Sequence[Chooser], size: int) -> Tensor:
    """Exponential random numbers (requests, size), each row from its request's generator.

    They are those of `row.exponential_(generator=...)` of torch 2.13, which takes one logarithm after the other, in a
    third of its time.
    """
    uniform = torch.empty(len(choosers), size, dtype=torch.float64)
    for row, chooser in zip(uniform, choosers, strict=True):
        row.uniform_(generator=chooser.generator)
    return uniform.neg_().log1p_().neg_().float()


class Falling:
    """The shares of each row (requests, vocabulary) in falling order, sorted only as far as needed.

    Sorting a whole vocabulary takes longer than all else in the choice of a token, and few of its tokens are kept.
    """

    def __init__(self, shares: Tensor) -> None:
        self._shares = shares
        # equal shares in the order of their ids, as a stable sort has them
        order = shares.topk(min(CANDIDATES, shares.shape[1])).indices.sort(dim=-1).values
        self._values, places = shares.gather(1, order).sort(dim=-1, descending=True, stable=True)
        self._order = order.gather(1, places)
        self._totals = self._values.cumsum(-1)

    def row(self, row: int, sampling: Sampling) -> tuple[Tensor, Tensor]:
        """Shares of a row, and their ids: at least those that `sampling` keeps."""
        values = self._values[row]
        # of those that share the last value, topk may have left some out
        sure = int((values > values[-1]).sum())
        if sure and (
            0 < sampling.top_k <= sure
            or (not sampling.top_k and bool(self._totals[row, sure - 1] >= sampling.top_p + ROUNDING))
            # top_p is of the whole of top_k, so that its small shares count
            or ((not sampling.top_k or sampling.top_p >= 1) and bool(values[-1] < sampling.min_p * values[0]))
        ):
            return values[:sure], self._order[row, :sure]
        return self._shares[row].sort(descending=True, stable=True)


def _kept(values: Tensor, sampling: Sampling, size: int) -> Tensor:
    """The shares in falling order, with 0 for tokens that are excluded; `size` is that of the vocabulary."""
    kept = values.clone()
    if sampling.top_k:
        kept[sampling.top_k :] = 0
        whole = torch.zeros(size)  # so that the sum rounds as that of the whole vocabulary
        whole[: len(kept)] = kept
        kept /= whole.sum()  # top_p refers to the remaining tokens
    if sampling.top_p < 1:
        first = kept[0].clone()
        kept = kept.where(kept.cumsum(0) - kept < sampling.top_p, 0)
        kept[0] = first  # also if top_p is 0 in single precision
    kept[values < sampling.min_p * values[0]] = 0
    return kept
