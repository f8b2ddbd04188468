"""Reference kernels: the functions that `mamba_ssm` and `causal_conv1d` offer for a GPU, in plain torch.

Names, arguments and results are those of the packages, so that a model can call either. They run on any
device, in any floating type (computed in float32, or float64 if x is), and keep the documents of a packed row
exactly apart: where `seq_idx` (batch, length) changes, state, decay and convolution are reset.

    y = mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size=128, D=D, dt_bias=bias, dt_softplus=True)

Shapes: batch b, length l, heads h of p channels, groups g of h / g heads, state size n. Unsupported arguments raise
`ValueError`; none is ignored.
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nemotron_engines.kernels.mamba_scan import ChunkScan, tile_for

# The short causal convolution before the scan: shifted multiply-adds are faster than a convolution call for the
# W = 4 steps of Nemotron, in any memory order: out[t] = bias + weight[W - 1] * x[t] + ... + weight[0] * x[t - W + 1].
# Steps of another document count as zero.


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


def compute_type(tensor: Tensor) -> torch.dtype:
    """float64 stays; everything else is computed in float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def refuse(**arguments: Any) -> None:
    """Raise for the first unsupported argument that is not None."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}={type(value).__name__} is not supported without the mamba_ssm kernels")


def uses_silu(activation: str | None) -> bool:
    """Whether an activation name means silu; raises for names other than silu, swish and None."""
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation must be None, 'silu' or 'swish', not {activation!r}")
    return activation is not None


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False,
    final_states_out: Tensor | None = None, activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Depthwise causal convolution of x (b, d, l) with weight (d, w); states are the w - 1 steps before x."""
    if seq_idx is not None and (initial_states is not None or return_final_states):
        raise ValueError("seq_idx cannot be combined with initial_states or return_final_states")
    dtype, before = compute_type(x), weight.shape[1] - 1
    full = x if initial_states is None else torch.cat([initial_states.to(x.dtype), x], -1)
    runs = None if seq_idx is None else document_runs(seq_idx)
    bias = None if bias is None else bias.to(dtype)
    out = CausalConv.apply(full.to(dtype), weight.to(dtype), bias, runs, uses_silu(activation))
    out = out[..., full.shape[-1] - x.shape[-1] :].to(x.dtype)
    if not return_final_states:
        return out
    final = F.pad(full, (max(before - full.shape[-1], 0), 0))[..., -before:]
    return out, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None,
    cache_seqlens: Tensor | None = None, conv_state_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The convolution for the next steps x (b, d) or (b, d, l); shifts them into conv_state (b, d, s >= w - 1)."""
    refuse(cache_seqlens=cache_seqlens, conv_state_indices=conv_state_indices)
    steps = x if x.dim() == 3 else x[..., None]
    dtype, length, width = compute_type(x), steps.shape[-1], weight.shape[1]
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if length == 1 and width == conv_state.shape[-1] and conv_state.is_contiguous():
        flat = conv_state.view(-1)
        flat[:-1] = flat[1:].clone()  # shift everything left by one; values that cross rows are overwritten
        conv_state[..., -1:] = steps
        product = (conv_state.to(dtype) * weight).view(-1, width)
        out = product.mv(product.new_ones(width)).view(steps.shape)
        out = out if bias is None else out + bias[:, None]
        out = F.silu(out) if uses_silu(activation) else out
    else:
        seen = torch.cat([conv_state, steps.to(conv_state.dtype)], -1)
        conv_state.copy_(seen[..., length:])
        out = CausalConv.apply(seen.to(dtype), weight, bias, None, uses_silu(activation))[..., -length:]
    return out.to(x.dtype).view(x.shape)


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None,
    z: Tensor | None = None, dt_bias: Tensor | None = None, initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None, cu_seqlens: Tensor | None = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf), return_final_states: bool = False,
    return_varlen_states: bool = False, state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The scan (see mamba_scan.py) over x (b, l, h, p) with steps dt (b, l, h), A (h), B and C (b, l, g, n).

    D is (h) or (h, p), z (b, l, h, p) a gate, states are (b, h, p, n). Returns y like x, and with
    `return_final_states` the state after the last step. `chunk_size` bounds the tile, which never changes
    the result.
    """
    refuse(cu_seqlens=cu_seqlens, return_varlen_states=return_varlen_states, state_dtype=state_dtype)
    if seq_idx is not None and initial_states is not None:
        raise ValueError("seq_idx cannot be combined with initial_states, which belong to no document")
    if dt_limit[0] < 0:
        raise ValueError(f"dt_limit must not allow negative steps, not {dt_limit}")
    dtype, length = compute_type(x), x.shape[1]
    dt = dt.to(dtype) if dt_bias is None else dt.to(dtype) + dt_bias.to(dtype)
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    tile = min(tile_for(x.shape[-1], B.shape[-1], chunk_size), length)
    runs = None if seq_idx is None else document_runs(seq_idx)
    missing = -length % tile
    inputs = [x.to(dtype), B.to(dtype), C.to(dtype)]
    if missing:  # steps of size zero: they leave the state as it is
        inputs, dt = [F.pad(t, (0, 0, 0, 0, 0, missing)) for t in inputs], F.pad(dt, (0, 0, 0, missing))
        runs = None if runs is None else torch.cat([runs, runs[:, -1:].expand(-1, missing)], 1)
    D, start = (None if t is None else t.to(dtype) for t in (D, initial_states))
    y, final = ChunkScan.apply(inputs[0], dt, A.to(dtype), *inputs[1:], D, start, runs, tile, torch.is_grad_enabled())
    y = y[:, :length] if z is None else y[:, :length] * F.silu(z.to(dtype))
    return (y.to(x.dtype), final) if return_final_states else y.to(x.dtype)


def unexpanded(tensor: Tensor) -> Tensor:
    """The tensor with size 1 in every dimension that only repeats one value."""
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor[index]


def selective_state_update(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One step of the scan; overwrites `state` (b, h, p, n) and returns y like x (b, h, p).

    dt (b, h, p), A (h, p, n), B and C (b, g, n), D and dt_bias (h, p); without heads, all of them lack h. If dt, A or
    dt_bias repeat one value per head, the repetitions are not computed.
    """
    refuse(state_batch_indices=state_batch_indices)
    if state.dim() == 3:
        D, z, dt_bias = (None if t is None else t.unsqueeze(-2) for t in (D, z, dt_bias))
        x, dt, A, B, C = x[:, None], dt[:, None], A[None], B[:, None], C[:, None]
        return selective_state_update(state[:, None], x, dt, A, B, C, D, z, dt_bias, dt_softplus)[:, 0]
    dtype, (batch, heads, channels, size) = compute_type(x), state.shape
    step = unexpanded(dt).to(dtype)
    step = step if dt_bias is None else step + unexpanded(dt_bias).to(dtype)
    step = F.softplus(step) if dt_softplus else step
    decay = torch.exp(step[..., None] * unexpanded(A).to(dtype))
    new = state.mul_(decay) if state.dtype == dtype else state.to(dtype) * decay
    by_group = new.unflatten(1, (B.shape[1], -1))
    by_group.addcmul_((step * x.to(dtype)).reshape(*by_group.shape[:4], 1), B.to(dtype)[:, :, None, None])
    if new is not state:
        state.copy_(new)
    seen = (by_group * C.to(dtype)[:, :, None, None]).reshape(-1, size)
    y = seen.mv(seen.new_ones(size)).view(batch, heads, channels)
    y = y if D is None else y.addcmul_(x.to(dtype), D.to(dtype))
    return (y if z is None else y * F.silu(z.to(dtype))).to(x.dtype)


class GatedNorm(torch.autograd.Function):
    """(x, gate z or None, weight, eps, group size) -> normalize(x * silu(z)) * weight, by groups of channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor | None, weight: Tensor, eps: float, group: int) -> Tensor:
        gated = x.contiguous() if z is None else (F.silu(z).mul_(x))
        mean = gated.new_full((group,), 1 / group)
        power = (gated * gated).view(-1, group).mv(mean)
        scale = power.add_(eps).rsqrt_()[:, None]
        normal = (gated.view(-1, group) * scale).view(x.shape)
        ctx.save_for_backward(x, z, weight, normal, scale, mean)
        return normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, z, weight, normal, scale, mean = ctx.saved_tensors
        group = len(mean)
        along = dout * normal
        dweight = along.sum(tuple(range(x.dim() - 1)))
        share = along.mul_(weight).view(-1, group).mv(mean)[:, None]
        dnormal = (dout * weight).view(-1, group)
        dgated = dnormal.addcmul_(normal.view(-1, group), share, value=-1).mul_(scale).view(x.shape)
        if z is None:
            return dgated, None, dweight, None, None
        slope = torch.sigmoid(z)
        gate = z * slope
        dz = (dgated * x).mul_(slope.addcmul_(gate, slope, value=-1).add_(gate))
        return dgated.mul_(gate), dz, dweight, None, None


def rmsnorm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None, eps: float = 1e-6,
    group_size: int | None = None, norm_before_gate: bool = True, upcast: bool = True,
) -> Tensor:  # fmt: skip
    """Root-mean-square norm of x (..., d) in groups of `group_size` channels, gated by silu(z).

    The gate comes after the norm, or before it with `norm_before_gate=False` as in Nemotron.
    """
    if not upcast:
        raise ValueError("upcast=False is not supported: the norm is always computed in float32 or float64")
    dtype = compute_type(x)
    gate = None if z is None else z.to(dtype)
    first = None if norm_before_gate else gate
    out = GatedNorm.apply(x.to(dtype), first, weight.to(dtype), eps, group_size or x.shape[-1])
    out = out if bias is None else out + bias.to(dtype)
    return (out * F.silu(gate) if norm_before_gate and gate is not None else out).to(x.dtype)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor,
    chunk_size: int, initial_states: Tensor | None = None, seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf), return_final_states: bool = False,
    activation: str | None = "silu", rmsnorm_weight: Tensor | None = None, rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None, outproj_bias: Tensor | None = None, headdim: int | None = None,
    ngroups: int = 1, norm_before_gate: bool = True, state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """A whole Mamba-2 mixer after its input projection zxbcdt (b, l, 2 h p + 2 g n + h): gate, x, B, C, dt.

    Convolution, scan, gated norm (or only the gate, without `rmsnorm_weight`) and output projection.
    """
    headdim = D.shape[1] if D.dim() == 2 else headdim
    if headdim is None:
        raise ValueError("headdim is needed when D has one value per head")
    heads, inner = D.shape[0], D.shape[0] * headdim
    size = (conv1d_weight.shape[0] - inner) // ngroups // 2
    if zxbcdt.shape[-1] != 2 * inner + 2 * ngroups * size + heads:
        raise ValueError(f"zxbcdt has {zxbcdt.shape[-1]} channels, not {2 * inner + 2 * ngroups * size + heads}")
    z, xBC, dt = zxbcdt.split([inner, conv1d_weight.shape[0], heads], -1)
    xBC = cast(Tensor, causal_conv1d_fn(xBC.mT, conv1d_weight, conv1d_bias, seq_idx, activation=activation)).mT
    x, B, C = xBC.split([inner, ngroups * size, ngroups * size], -1)
    y, final = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, headdim)), dt, A, B.unflatten(-1, (ngroups, size)), C.unflatten(-1, (ngroups, size)),
        chunk_size, D, z.unflatten(-1, (heads, headdim)) if rmsnorm_weight is None else None, dt_bias,
        initial_states, seq_idx, dt_softplus=True, dt_limit=dt_limit, return_final_states=True,
        state_dtype=state_dtype,
    )  # fmt: skip
    y = y.flatten(2)
    if rmsnorm_weight is not None:
        y = rmsnorm_fn(y, rmsnorm_weight, None, z, rmsnorm_eps, inner // ngroups, norm_before_gate)
    y = y if outproj_weight is None else F.linear(y, outproj_weight, outproj_bias)
    return (y, final) if return_final_states else y
