"""The Mamba-2 state-space scan in plain torch, with a hand-written backward pass.

For one head with P channels and a state of N numbers per channel the scan computes, step by step,

    state_t = exp(dt_t * A) * state_{t-1} + dt_t * x_t (outer) B_t        state: (P, N)
    y_t     = state_t . C_t + D * x_t

Here the sequence is cut into chunks of `tile` steps. Inside a chunk the same numbers come from two matrix
products, y = (C B^T * decay) x, with one C B^T for all heads of a group; between chunks only the state moves.
`decay[i, j]` is 2 ** (rise_i + source_j) with rise = log2(e) * cumsum(dt * A) and source = log2(dt) - rise, so
the step size costs no pass over x, and the power of two is the exponential that torch computes fastest.

The backward pass needs no sum over decay matrices: every contribution of x_j to an output has the factor
2 ** source_j, and every contribution to y_i the factor 2 ** rise_i. Hence d(source_j) = x_j . dx_j and
d(rise_i) = y_i . dy_i (both without the D term), in units of natural logarithms.

Tensors inside are chunk-major: (chunks, batch, heads or groups, tile, channels).
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG2_E = math.log2(math.e)
SMALLEST_STEP = 1e-20  # stands for a step of zero, whose logarithm is not finite
BLOCK_ELEMENTS = 1 << 18  # about 1 MiB of float32 for each temporary: larger ones fall out of the caches


class Decay(NamedTuple):
    """Decay between the steps of each chunk. All are (chunks, batch, heads, tile)
    unless noted; names with `exponent` hold exponents of two."""

    step: Tensor  # dt
    rise_exponent: Tensor  # log2 of the decay from the start of the chunk or document
    source_exponent: Tensor
    mask: Tensor  # 0 where step j may reach step i, else -inf: (tile, tile) or (chunks, batch, 1, tile, tile)
    reach: Tensor  # the same as 1 and 0: (tile, tile) or (chunks, batch, tile, tile)
    from_start: Tensor  # weight of the state at the start of the chunk
    to_end: Tensor  # weight of x in the state at the end of the chunk
    across: Tensor  # (chunks, batch, heads, 1, 1) weight of the old state in the new one

    def part(self, chunks: slice) -> "Decay":
        """The decay of some of the chunks."""
        shared = self.mask.dim() == 2
        return Decay(*(t if shared and t.dim() == 2 else t[chunks] for t in self))

    def matrix(self) -> Tensor:
        """(chunks, batch, heads, tile, tile): weight of x_j in y_i."""
        exponent = self.rise_exponent[..., :, None] + self.source_exponent[..., None, :]
        return exponent.add_(self.mask).exp2_()


def tile_for(headdim: int, state_size: int, chunk_size: int) -> int:
    """The chunk length that is fastest here; any gives the same result, so `chunk_size` is an upper bound."""
    return min(chunk_size, 16 if headdim * state_size <= 256 else 32 if state_size * headdim <= 4096 else 64)


def build_decay(dt: Tensor, A: Tensor, runs: Tensor | None, tile: int) -> Decay:
    """Weights from step sizes dt (batch, length, heads), A (heads) and document numbers (batch, length).

    The cumulative sums restart with each document, so that rounding does not depend on the previous document.
    """
    step = dt.unflatten(1, (-1, tile)).permute(1, 0, 3, 2).clamp_min(SMALLEST_STEP).contiguous()
    slope = step * (A * LOG2_E)[:, None]
    if runs is None:
        mask, reach = causal(tile, dt.dtype, dt.device)
        rise = slope.cumsum(-1)
    else:
        document = runs.unflatten(1, (-1, tile)).transpose(0, 1)
        same = (document[..., :, None] == document[..., None, :]).tril_()
        reach = same.to(dt.dtype)
        mask = torch.zeros_like(reach).masked_fill_(~same, -math.inf)[:, :, None]
        rise = slope @ reach.mT
    source = step.log2().sub_(rise)
    from_start, to_end = rise.exp2(), source + rise[..., -1:]
    if runs is not None:
        before = torch.cat([document[:1, :, :1], document[:-1, :, -1:]])
        from_start *= (document == before)[:, :, None]
        # Mask before the power of two: strong decay in an earlier document gives infinity, times zero NaN.
        to_end.masked_fill_((document != document[..., -1:])[:, :, None], -math.inf)
    to_end.exp2_()
    return Decay(step, rise, source, mask, reach, from_start, to_end, from_start[..., -1, None, None].contiguous())


@cache
def causal(tile: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """`mask` and `reach` (see `Decay`) of a row that holds one document."""
    with torch.inference_mode(False):  # built during generation, they are reused in training
        reach = torch.ones(tile, tile, dtype=dtype, device=device).tril_()
        return torch.zeros_like(reach).masked_fill_(reach == 0, -math.inf), reach


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, which would compute the products in half precision; does nothing if it is off, to save time."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def to_chunks(tensor: Tensor, tile: int) -> Tensor:
    """(batch, length, J, K) -> contiguous (chunks, batch, J, tile, K)."""
    return tensor.unflatten(1, (-1, tile)).permute(1, 0, 3, 2, 4).contiguous()


def in_time(tensor: Tensor) -> Tensor:
    """(chunks, batch, J, tile, K) -> the view (batch, chunks, tile, J, K)."""
    return tensor.permute(1, 0, 3, 2, 4)


def scaled_rows(tensor: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Heads (chunks, batch, H, tile, P) times (chunks, batch, H, tile) -> (chunks * batch * G, tile, H / G * P).

    The heads of a group are adjacent, so one matrix product with B or C serves them all.
    """
    _, _, heads, tile, channels = tensor.shape
    rows = tensor.view(-1, heads // groups, tile, channels).transpose(1, 2)
    result = torch.empty(rows.shape, dtype=tensor.dtype, device=tensor.device)
    torch.mul(rows, weight.reshape(-1, heads // groups, tile, 1).transpose(1, 2), out=result)
    return result.view(-1, tile, heads // groups * channels)


def add_scaled_rows(target: Tensor, rows: Tensor, weight: Tensor) -> None:
    """The way back: target (chunks, batch, H, tile, P) += rows (chunks * batch * G, tile, H / G * P) * weight."""
    _, _, _, tile, channels = target.shape
    by_head = rows.view(rows.shape[0], tile, -1, channels).transpose(1, 2)
    target.view(by_head.shape).addcmul_(by_head, weight.reshape(*by_head.shape[:3], 1))


def channel_sum(left: Tensor, right: Tensor) -> Tensor:
    """sum over the last dimension of left * right; as a matrix-vector product, which torch does fastest."""
    product = (left * right).view(-1, left.shape[-1])
    return product.mv(product.new_ones(product.shape[-1])).view(left.shape[:-1])


def spans(chunks: int, tile: int, elements_per_step: int) -> Iterator[tuple[slice, slice]]:
    """Runs of chunks small enough for the caches, as (chunks, steps), in order."""
    size = max(1, BLOCK_ELEMENTS // (tile * elements_per_step))
    for start in range(0, chunks, size):
        stop = min(start + size, chunks)
        yield slice(start, stop), slice(start * tile, stop * tile)


class Block(NamedTuple):
    """One run of chunks: values that the forward pass saves for the backward pass. All chunk-major."""

    x: Tensor  # (chunks, batch, H, tile, P)
    B: Tensor  # (chunks, batch, G, tile, N)
    C: Tensor
    y: Tensor  # like x, without the D term
    states: Tensor  # (chunks + 1, batch, H, P, N): before the first chunk, and after each


def forward_block(x: Tensor, B: Tensor, C: Tensor, decay: Decay, state: Tensor) -> Block:
    """Scan a run of chunks that starts in `state` (batch, H, P, N); x, B and C are in time order."""
    x, B, C = (to_chunks(t, decay.step.shape[-1]) for t in (x, B, C))
    y = inside_chunks(x, B, C, decay)
    states = handed_over(x, B, decay, state)
    add_from_start(y, C, decay, states[:-1])
    return Block(x, B, C, y, states)


def inside_chunks(x: Tensor, B: Tensor, C: Tensor, decay: Decay) -> Tensor:
    """Contributions between the steps of each chunk, like x; all chunk-major."""
    _, _, heads, tile, channels = x.shape
    groups, size = B.shape[2:5:2]
    mixing = decay.matrix().view(-1, heads // groups, tile, tile)
    mixing.mul_(torch.bmm(C.view(-1, tile, size), B.view(-1, tile, size).mT)[:, None])
    return torch.bmm(mixing.view(-1, tile, tile), x.view(-1, tile, channels)).view(x.shape)


def handed_over(x: Tensor, B: Tensor, decay: Decay, state: Tensor) -> Tensor:
    """The given state before the first chunk, and the state after each: (chunks + 1, batch, H, P, N)."""
    chunks, _, _, tile, _ = x.shape
    groups, size = B.shape[2:5:2]
    added = torch.bmm(scaled_rows(x, decay.to_end, groups).mT, B.view(-1, tile, size)).view(chunks, *state.shape)
    states = state.new_empty(chunks + 1, *state.shape)
    states[0] = state
    for i in range(chunks):
        torch.addcmul(added[i], states[i], decay.across[i], out=states[i + 1])
    return states


def add_from_start(y: Tensor, C: Tensor, decay: Decay, states: Tensor) -> None:
    """Add to y the contribution of the state at the start of its chunk."""
    tile, size = C.shape[3:]
    rows = C.view(-1, tile, size)
    add_scaled_rows(y, torch.bmm(rows, states.view(len(rows), -1, size).mT), decay.from_start)


class BlockGradients(NamedTuple):
    """The gradients of one block, chunk-major like the block itself."""

    x: Tensor
    B: Tensor
    C: Tensor
    rise: Tensor  # (chunks, batch, H, tile), of the exponents in natural units
    source: Tensor
    state: Tensor  # (batch, H, P, N), of the state that the block began in


def backward_block(block: Block, decay: Decay, dy: Tensor, dstate: Tensor) -> BlockGradients:
    """Gradients from dy (chunk-major) and from the gradient of the state that the block ended in."""
    x, B, C, y, states = block
    _, _, heads, tile, channels = x.shape
    groups, size = B.shape[2], B.shape[-1]
    B, C = B.view(-1, tile, size), C.view(-1, tile, size)
    score = torch.bmm(C, B.mT)[:, None]
    matrix = decay.matrix().view(-1, heads // groups, tile, tile)
    dmixing = torch.bmm(dy.view(-1, tile, channels), x.view(-1, tile, channels).mT).view(matrix.shape)
    dscore = dmixing.mul_(matrix).sum(1)
    del dmixing
    dx = torch.bmm(matrix.mul_(score).view(-1, tile, tile).mT, dy.view(-1, tile, channels)).view(x.shape)
    del matrix

    dy_rows = scaled_rows(dy, decay.from_start, groups)
    dC = torch.bmm(dy_rows, states[:-1].view(C.shape[0], -1, size)).baddbmm_(dscore, B)
    starts = torch.bmm(dy_rows.mT, C).view(states[:-1].shape)  # each chunk's gradient of its first state
    dstates = torch.empty_like(states)
    dstates[-1] = dstate
    for i in reversed(range(len(starts))):
        torch.addcmul(starts[i], dstates[i + 1], decay.across[i], out=dstates[i])
    ends = dstates[1:].view(B.shape[0], -1, size)
    dB = torch.bmm(scaled_rows(x, decay.to_end, groups), ends).baddbmm_(dscore.mT, C)
    add_scaled_rows(dx, torch.bmm(B, ends.mT), decay.to_end)
    drise = channel_sum(dy, y)
    drise[..., -1] += torch.mul(dstates[1:], states[1:], out=starts).sum((-1, -2))
    return BlockGradients(dx, dB.view(block.B.shape), dC.view(block.C.shape), drise, channel_sum(x, dx), dstates[0])


class ChunkScan(torch.autograd.Function):
    """(x, dt, A, B, C, D, initial state, document numbers, tile, keep) -> (y, state after the last step).

    x (batch, length, H, P), dt (batch, length, H) positive, A (H), B and C (batch, length, G, N), D (H), (H, P)
    or None, states (batch, H, P, N). The length is a multiple of `tile`; all are of one floating type.
    With `keep` false nothing is saved for a backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
        initial: Tensor | None, runs: Tensor | None, tile: int, keep: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        batch, length, heads, channels = x.shape
        state = x.new_zeros(batch, heads, channels, B.shape[-1]) if initial is None else initial
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        ctx.spans = list(spans(length // tile, tile, batch * heads * max(channels, tile)))
        saved: list[Tensor] = []
        with without_autocast(x):
            decay = build_decay(dt, A, runs, tile)
            for chunks, steps in ctx.spans:
                block = forward_block(x[:, steps], B[:, steps], C[:, steps], decay.part(chunks), state)
                saved += block if keep else ()
                state = block.states[-1]
                here, y = out[:, steps].unflatten(1, (-1, tile)), in_time(block.y)
                if D is None:
                    here.copy_(y)
                else:
                    torch.addcmul(y, x[:, steps].unflatten(1, (-1, tile)), D.view(heads, -1), out=here)
        ctx.save_for_backward(A, D, *decay, *saved)
        ctx.has_initial = initial is not None
        return out, state.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
        A, D, *saved = ctx.saved_tensors
        decay, saved = Decay(*saved[: len(Decay._fields)]), saved[len(Decay._fields) :]
        tile = decay.step.shape[-1]
        dx, dB, dC, drise, dsource = allocate_gradients(dout, Block(*saved[:5]), decay)
        dD = None if D is None else torch.zeros_like(D)
        with without_autocast(dout):
            for chunks, steps in reversed(ctx.spans):
                block, saved = Block(*saved[-5:]), saved[:-5]
                dy = to_chunks(dout[:, steps], tile)
                found = backward_block(block, decay.part(chunks), dy, dstate)
                if dD is not None:
                    found.x.addcmul_(dy, D.view(len(D), 1, -1))
                    dD += (channel_sum(dy, block.x) if D.dim() == 1 else dy * block.x).sum((0, 1, 3))
                for target, value in ((dx, found.x), (dB, found.B), (dC, found.C)):
                    target[:, steps].unflatten(1, (-1, tile)).copy_(in_time(value))
                drise[chunks], dsource[chunks], dstate = found.rise, found.source, found.state
            dexponent = (drise - dsource) @ decay.reach
            ddt = torch.addcmul(dsource / decay.step, dexponent, A[:, None]).permute(1, 0, 3, 2).flatten(1, 2)
            dA = (dexponent * decay.step).sum((0, 1, 3))
        return dx, ddt, dA, dB, dC, dD, dstate if ctx.has_initial else None, None, None, None


def allocate_gradients(dout: Tensor, block: Block, decay: Decay) -> tuple[Tensor, ...]:
    """Allocate dx, dB and dC in time order, and the gradients of the two exponents."""
    shape = (*dout.shape[:2], block.B.shape[2], block.B.shape[4])
    exponents = (decay.step.shape, decay.step.shape)
    return tuple(dout.new_empty(size) for size in (dout.shape, shape, shape, *exponents))
