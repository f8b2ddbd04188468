"""What is other in a rehearsal of RL: the model's head is compared with TRL's, and of GRPO every second completion of a
prompt has a reward that is higher by 1.

Random weights never answer rightly, and where all completions of a prompt have one reward, a step computes no gradient
and shows nothing. Rewards of this repository are computed all the same, to see them take the answers; those of other
packages count 0 and are not called, because they may ask others, and cost time and money.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nemotron_shared.system.errors import UserError
from stages.rl.engines.trl.trainer import JudgedTrainer

LARGE = 40.0
"""Standard deviation of the logits that are compared: those of small random weights are too small for any cap."""
TOKENS = 16
ROUNDING = 0.1
"""Nats by which log-probabilities of such logits may differ; in float32 it is 2e-5, a cap makes it 100."""


@contextmanager
def rewards_apart() -> Generator[None]:
    """Let trainings inside this block be rehearsals."""
    JudgedTrainer.rehearses = True
    try:
        yield
    finally:
        JudgedTrainer.rehearses = False


def require_same_head(model: Any, temperature: float = 1.0) -> None:
    """Compare log-probabilities as TRL computes them in training with those of the model's own logits.

    TRL 1.16 (`add_fused_lm_head`) multiplies the last hidden states by the head's weight alone, and applies those
    factors and caps of a config whose names it knows. RecurrentGemma's `logits_soft_cap` and xLSTM's
    `output_logit_soft_cap` are not among them: what is trained would be another model than what is sampled. Does
    nothing outside of a rehearsal.

    Args:
        model: as TRL has changed it.

    Raises:
        UserError: they differ.
    """
    if not JudgedTrainer.rehearses:
        return
    weight, trained = model.get_output_embeddings().weight.data, model.training
    ids = torch.arange(TOKENS, device=weight.device)[None] % len(weight)
    before = weight.clone()
    model.eval()
    with torch.no_grad():
        weight.mul_(LARGE / _logits(model, ids).std())
        own = (_logits(model, ids) / temperature).log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])
        fused = model(input_ids=ids, labels=ids, fused_lm_head=True).log_probs
        apart = float((own.flatten() - fused.flatten()).abs().max())
        weight.copy_(before)
    model.train(trained)
    if apart > ROUNDING:
        what = "TRL 1.16 computes other log-probabilities than this model, which changes the logits of its head"
        raise UserError(f"{what} by a setting that TRL does not know", "fine-tune it, or give another model to RL")


def _logits(model: Any, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits.float()
