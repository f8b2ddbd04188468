"""Mamba-2 in blocks: states are passed on at block ends, and decoding recomputes the open block."""

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nemotron_engines.exact.layers import linear
from nemotron_engines.kernels.mamba_ops import CausalConv, GatedNorm
from nemotron_engines.kernels.mamba_scan import (
    ChunkScan,
    Decay,
    build_decay,
    forward_block,
    handed_over,
    in_time,
)


class ExactConv(CausalConv):
    """The convolution with each product rounded before it is added, so that every position rounds alike."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, runs: Tensor | None, silu: bool) -> Tensor:
        taps = weight.t().contiguous()[..., None]
        out = x * taps[-1]
        for lag in range(1, min(len(taps), x.shape[2])):
            out[..., lag:] += x[..., :-lag] * taps[-1 - lag]
        out = out if bias is None else out + bias[:, None]
        ctx.save_for_backward(x, taps, runs, out if silu else None)
        ctx.has_bias = bias is not None
        return F.silu(out) if silu else out


class ExactNorm(GatedNorm):
    """The gated norm with a separate sum per group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor | None, weight: Tensor, eps: float, group: int) -> Tensor:
        gated = x.contiguous() if z is None else (F.silu(z).mul_(x))
        grouped = gated.view(-1, group)
        scale = (grouped * grouped).mean(-1, keepdim=True).add_(eps).rsqrt_()
        normal = (grouped * scale).view(x.shape)
        ctx.save_for_backward(x, z, weight, normal, scale, gated.new_full((group,), 1 / group))
        return normal * weight


@dataclass
class MambaState:
    """One layer's memory of each sequence; sequences are the first dimension."""

    window: Tensor  # (.., width of the convolution - 1, channels), before the convolution
    x: Tensor  # (.., heads, block, P), of the open block
    B: Tensor  # (.., groups, block, N)
    C: Tensor
    dt: Tensor  # (.., block, heads)
    start: Tensor  # (.., heads, P, N), the state at the start of the open block

    def of(self, rows: Tensor) -> "MambaState":
        """The state of some sequences."""
        return MambaState(*(getattr(self, part.name)[rows] for part in fields(self)))


def _inner(mixer: Any, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split the convolution's output (.., channels) into x (.., heads, P), B and C (.., groups, N)."""
    wide = mixer.n_groups * mixer.ssm_state_size
    x, B, C = xBC.split([mixer.intermediate_size, wide, wide], -1)
    grouped = (mixer.n_groups, mixer.ssm_state_size)
    return x.unflatten(-1, (mixer.num_heads, mixer.head_dim)), B.unflatten(-1, grouped), C.unflatten(-1, grouped)


def _projected(mixer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gate, input of the convolution, and time steps, always in float32."""
    gate, xBC, dt = (
        linear(mixer.in_proj, x).float().split([mixer.intermediate_size, mixer.conv_dim, mixer.num_heads], -1)
    )
    return gate, xBC, F.softplus(dt + mixer.dt_bias).clamp(*mixer.time_step_limit)


def _convolved(mixer: Any, xBC: Tensor) -> Tensor:
    bias = mixer.conv1d.bias
    bias = None if bias is None else bias.float()
    return ExactConv.apply(xBC.mT, mixer.conv1d.weight.squeeze(1).float(), bias, None, True).mT


def _finished(mixer: Any, y: Tensor, x: Tensor, gate: Tensor) -> Tensor:
    """D's term, the gated norm and the output projection."""
    y = (y + x * mixer.D[:, None]).flatten(-2)
    group = mixer.intermediate_size // mixer.n_groups
    normal = ExactNorm.apply(y, gate, mixer.norm.weight, mixer.norm.variance_epsilon, group)
    return linear(mixer.out_proj, normal.to(mixer.dt_bias.dtype))


def mamba(mixer: Any, x: Tensor, block: int) -> Tensor:
    """A `NemotronHMamba2Mixer` over documents x (documents, length, width)."""
    gate, xBC, dt = _projected(mixer, x)
    xBC = _convolved(mixer, xBC)
    inner, B, C = _inner(mixer, xBC)
    A = -torch.exp(mixer.A_log)
    y, _ = ChunkScan.apply(inner, dt, A, B, C, None, None, None, block, torch.is_grad_enabled())
    return _finished(mixer, y, inner, gate)


def mamba_prefill(mixer: Any, x: Tensor, lengths: Tensor, block: int) -> tuple[Tensor, MambaState]:
    """The same without gradients, plus the state after each document's last token."""
    gate, raw, dt = _projected(mixer, x)
    xBC = _convolved(mixer, raw)
    inner, B, C = _inner(mixer, xBC)
    decay = build_decay(dt, -torch.exp(mixer.A_log), None, block)
    zero = dt.new_zeros(len(x), mixer.num_heads, mixer.head_dim, mixer.ssm_state_size)
    found = forward_block(inner, B, C, decay, zero)
    every, whole = torch.arange(len(x), device=x.device), lengths // block
    taps = mixer.conv_kernel_size - 1
    padded = F.pad(raw, (0, 0, taps, block))
    window = padded[every[:, None], lengths[:, None] + torch.arange(taps, device=x.device)]
    steps = whole[:, None] * block + torch.arange(block, device=x.device)
    *opened, dt = (
        F.pad(part, (0, 0) * (part.dim() - 2) + (0, block))[every[:, None], steps] for part in (inner, B, C, dt)
    )
    opened = (part.transpose(1, 2).contiguous() for part in opened)
    state = MambaState(window, *opened, dt, found.states[whole, every])
    return _finished(mixer, in_time(found.y).flatten(1, 2), inner, gate), state


def mamba_step(mixer: Any, x: Tensor, at: Tensor, state: MambaState, block: int) -> Tensor:
    """Output for the next token x (sequences, width) at position `at` (sequences); updates the state."""
    gate, raw, dt = _projected(mixer, x)
    taps = mixer.conv1d.weight.squeeze(1).t().float()
    seen = torch.cat([state.window, raw[:, None]], 1)
    state.window = seen[:, 1:]
    out = raw * taps[-1]
    for lag in range(1, len(taps)):
        out += seen[:, -1 - lag] * taps[-1 - lag]
    out = F.silu(out if mixer.conv1d.bias is None else out + mixer.conv1d.bias)
    inner, B, C = _inner(mixer, out)
    every, inside = torch.arange(len(x), device=x.device), at % block
    for held, new in ((state.x, inner), (state.B, B), (state.C, C)):
        held[every, :, inside] = new
    state.dt[every, inside] = dt
    decay = build_decay(state.dt, -torch.exp(mixer.A_log), None, block)
    y = _scanned(state, decay, (every, slice(None), inside))
    if len(full := (inside == block - 1).nonzero().flatten()):
        ended = Decay(*(part[:, full] if part.dim() > 2 else part for part in decay))
        opened = (held[full][None] for held in (state.x, state.B))
        state.start[full] = handed_over(*opened, ended, state.start[full])[1]
    return _finished(mixer, y, inner, gate)


def _scanned(state: MambaState, decay: Decay, here: tuple[Tensor, slice, Tensor]) -> Tensor:
    """The scan's output (sequences, heads, P) at one position of each open block.

    It has the bits of `inside_chunks` and `add_from_start`: only the products need whole blocks for that.
    """
    rows, heads, tile, channels = state.x.shape
    groups, size = state.B.shape[1], state.B.shape[3]
    by_group = (rows, groups, heads // groups, -1)
    B, C = state.B.view(-1, tile, size), state.C.view(-1, tile, size)
    scores = torch.bmm(C, B.mT).view(rows, groups, tile, tile)[here]
    exponent = decay.rise_exponent[0][here][..., None] + decay.source_exponent[0]
    mixing = exponent.add_(decay.mask[here[2], None]).exp2_()
    mixing.view(by_group).mul_(scores[:, :, None])
    whole = mixing.new_zeros(rows, heads, tile, tile)
    whole[here] = mixing
    y = torch.bmm(whole.view(-1, tile, tile), state.x.view(-1, tile, channels)).view(state.x.shape)[here]
    before = torch.bmm(C, state.start.view(len(C), -1, size).mT).view(rows, groups, tile, -1)[here]
    y.view(by_group).addcmul_(before.view(by_group), decay.from_start[0][here].view(by_group))
    return y
