"""How far the log-probabilities of sampled tokens are from those that training computes, over one step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nemotron_shared.runtime.metrics import Metric

FARTHEST = 600.0
"""Nats; further apart, a ratio would soon be no number that a log can hold."""


@dataclass
class Differences:
    """Sums over the micro batches of a step, of one process or of all."""

    tokens: int = 0
    differing: int = 0
    routed: int = 0  # tokens drawn behind a choice of experts
    flips: int = 0  # of these, behind another choice than that of training
    multiplied: float = 0.0  # sum of exp(|difference|)
    largest: float = 0.0
    sequences: int = 0
    ratios: float = 0.0  # sum of a sequence's probability in training over that in sampling

    def add(self, sampled: Tensor, trained: Tensor, mask: Tensor, flipped: Tensor | None) -> None:
        """Count one micro batch; all (rows, tokens), log-probabilities in nats, the mask and `flipped` bool."""
        apart = (trained - sampled).double().masked_fill(~mask, 0).clamp(-FARTHEST, FARTHEST)
        self.tokens += int(mask.sum())
        self.differing += int((apart != 0).sum())
        if flipped is not None:
            self.routed += int(mask.sum())
            self.flips += int((flipped & mask).sum())
        self.multiplied += float(apart.abs().exp()[mask].sum())
        self.largest = max(self.largest, float(apart.abs().max()))
        there = mask.any(1)
        self.sequences += int(there.sum())
        self.ratios += float(apart.sum(1).clamp(max=FARTHEST).exp()[there].sum())

    def figures(self) -> dict[Metric, float]:
        """The step's figures of all processes together; every process calls this."""
        sums = [self.tokens, self.differing, self.routed, self.flips, self.multiplied, self.sequences, self.ratios]
        whole, largest = torch.tensor(sums, dtype=torch.float64), torch.tensor(self.largest, dtype=torch.float64)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(whole)
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        tokens, differing, routed, flips, multiplied, sequences, ratios = whole.tolist()
        if not tokens:
            return {}
        found: dict[Metric, float] = {
            "differing_tokens": differing / tokens,
            "logprob_difference": float(largest),
            "token_mult_prob_error": multiplied / tokens,
            "sequence_ratio": ratios / sequences,
        }
        if routed:
            found["router_flips"] = flips / routed
        return found
