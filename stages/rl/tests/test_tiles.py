"""The memory of TRL's head, by which plans of GRPO and DPO count."""

import torch
from torch.profiler import ProfilerActivity, profile
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE, ChunkedLogProbFunction
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

from nemotron_engines.estimate.memory import TILE, TILES

TOKENS, WIDTH, LOGITS = 64, 8, TILE[1]
"""Of fewer logits, a part of the tile stays untouched and takes no memory."""


def test_a_tile_takes_as_many_tensors_as_plans_count() -> None:
    assert TILE == (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE)
    hidden, head = (torch.randn(size, WIDTH, requires_grad=True) for size in (TOKENS, LOGITS))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        made = ChunkedLogProbFunction.apply(
            hidden, head, None, torch.arange(TOKENS), 1.0, TILE[1], None, 1.0, ("log_probs", "entropy")
        )
        made[0].sum().backward()
    peak = now = 0
    results = found.profiler.kineto_results  # ty: ignore[unresolved-attribute]
    for event in sorted(results.events(), key=lambda one: one.start_ns()):
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)
    tile = 4 * TOKENS * LOGITS
    assert abs(peak / tile - TILES) < 0.5
