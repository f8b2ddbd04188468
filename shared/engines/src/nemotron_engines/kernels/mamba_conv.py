"""The short causal convolution before the Mamba scan: every channel sees itself and the last few steps.

    out[t] = bias + weight[W - 1] * x[t] + weight[W - 2] * x[t - 1] + ... + weight[0] * x[t - W + 1]

W is 4 in Nemotron, so shifted multiply-adds over the whole tensor are faster than a convolution call, in
any memory order of x; steps of another document count as zero.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def document_runs(seq_idx: Tensor) -> Tensor:
    """Number the documents of each row (batch, length) from 0; a new one starts where `seq_idx` changes."""
    return F.pad((seq_idx[:, 1:] != seq_idx[:, :-1]).cumsum(1), (1, 0))


def same_document(runs: Tensor | None, lag: int, dtype: torch.dtype) -> Tensor | None:
    """(batch, 1, length - lag): 1 where the step `lag` earlier is in the same document, else 0."""
    return None if runs is None else (runs[:, lag:] == runs[:, :-lag])[:, None].to(dtype)


class CausalConv(torch.autograd.Function):
    """(x (batch, D, length), weight (D, W), bias (D) or None, document numbers or None, silu) -> like x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, runs: Tensor | None, silu: bool) -> Tensor:
        taps = weight.t().contiguous()[..., None]  # (W, D, 1): side by side in memory, like the channels of x
        out = x * taps[-1] if bias is None else torch.addcmul(bias[:, None], x, taps[-1])
        for lag in range(1, min(len(taps), x.shape[2])):
            earlier, same = x[..., :-lag], same_document(runs, lag, x.dtype)
            earlier = earlier if same is None else earlier * same
            out[..., lag:].addcmul_(earlier, taps[-1 - lag])
        ctx.save_for_backward(x, taps, runs, out if silu else None)
        ctx.has_bias = bias is not None
        return F.silu(out) if silu else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, runs, before = ctx.saved_tensors
        dout = dout if before is None else torch.ops.aten.silu_backward(dout, before)
        dx = dout * taps[-1]
        dtaps = torch.zeros_like(taps[..., 0])
        dtaps[-1] = (dout * x).sum((0, 2))
        for lag in range(1, min(len(taps), x.shape[2])):
            later, same = dout[..., lag:], same_document(runs, lag, x.dtype)
            later = later if same is None else later * same
            dx[..., :-lag].addcmul_(later, taps[-1 - lag])
            dtaps[-1 - lag] = (later * x[..., :-lag]).sum((0, 2))
        return dx, dtaps.t(), dout.sum((0, 2)) if ctx.has_bias else None, None, None
