"""Matrix products, attention and experts whose results for a row do not depend on the other rows.

Products use tiles of a fixed shape. Causal attention sums blocks of keys in order. Each expert's rows are padded to
whole tiles, and the results of a token are added in its own order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from nemotron_engines.kernels.experts import outer_products, products

TILE = 32
"""Rows of a tile. Libraries choose their code by a product's shape, and this is the only shape they see."""


class TiledProduct(torch.autograd.Function):
    """(x (rows, a), weight (b, a)) -> x @ weight.T; rows is a multiple of TILE."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return tiled(x, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight = ctx.needs_input_grad
        return dout @ weight if for_x else None, dout.t() @ x if for_weight else None


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`TiledProduct`; without gradients the product alone, because the call costs more than a small one."""
    return TiledProduct.apply(x, weight) if torch.is_grad_enabled() else tiled(x, weight.t())


def tiled(x: Tensor, matrix: Tensor) -> Tensor:
    """x (rows, a) @ matrix (a, b)."""
    tiles = x.view(len(x) // TILE, TILE, x.shape[-1])
    return torch.bmm(tiles, matrix.expand(len(tiles), *matrix.shape)).view(len(x), matrix.shape[1])


def linear(module: Any, x: Tensor) -> Tensor:
    """Output of an `nn.Linear`, or of one with PEFT adapters, for x (..., a); rows in whole tiles.

    Raises:
        TypeError: another kind of module.
    """
    if isinstance(module, nn.Linear):
        flat = x.flatten(0, -2)  # flatten, because view(-1) cannot infer a size from zero rows
        out = product(flat, module.weight).view(*x.shape[:-1], module.weight.shape[0])
        return out if module.bias is None else out + module.bias
    base = getattr(module, "base_layer", None)
    if base is None:
        raise TypeError(f"{type(module).__name__} is not a linear layer")
    out = linear(base, x)
    if module.disable_adapters or module.merged:
        return out
    for name in module.active_adapters:
        if name in module.lora_A:
            inner = linear(module.lora_A[name], module.lora_dropout[name](x))
            out = out + linear(module.lora_B[name], inner) * module.scaling[name]
    return out


def projected(mixer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (documents, length, groups, heads of a group, d), keys and values (documents, length, groups, d).

    Always in float32.
    """
    shape = (*x.shape[:-1], -1, mixer.head_dim)
    q, k, v = (linear(proj, x).float().view(shape) for proj in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    return q.unflatten(2, (k.shape[2], -1)), k, v


def blocks_of(tensor: Tensor, block: int) -> Tensor:
    """Keys or values (documents, length, groups, d) as (blocks, documents, groups, block, d)."""
    return tensor.unflatten(1, (-1, block)).permute(1, 0, 3, 2, 4).contiguous()


def attend(queries: Tensor, first: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Attention of one tile of queries over the blocks of keys.

    Args:
        queries: (documents * groups, heads * block, d): all heads of a group, each with `block` positions.
        first: position of the first query, for all or (documents * groups) of them.
        keys, values: (blocks, documents, groups, block, d) from position 0 on.
    """
    count, block = len(keys), keys.shape[3]
    steps = torch.arange(block, device=queries.device)
    behind = steps + block * torch.arange(count, device=queries.device).view(-1, 1, 1, 1, 1)
    hidden = behind > first.view(-1, 1, 1, 1) + steps[:, None]  # (blocks, 1 or items, 1, block, block)
    many = queries.expand(count, *queries.shape).flatten(0, 1)
    rows = (count, len(queries), -1, block)
    scores = torch.bmm(many, keys.flatten(0, 2).mT).view(*rows, block).mul(scaling).masked_fill(hidden, -torch.inf)
    powers = (scores - scores.detach().amax((0, -1), keepdim=True)).exp()
    seen = torch.bmm(powers.view(len(many), -1, block), values.flatten(0, 2)).view(*rows, queries.shape[-1])
    return added(seen) / added(powers.sum(-1, keepdim=True))


def added(parts: Iterable[Tensor]) -> Tensor:
    """Sum in order, one after the other."""
    first, *others = parts
    for part in others:
        first = first + part
    return first


def attention(mixer: Any, x: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """A `NemotronHAttention` over documents x (documents, length, width); also their keys and values, in blocks."""
    q, k, v = projected(mixer, x)
    documents, length, groups, heads, size = q.shape
    keys, values = blocks_of(k, block), blocks_of(v, block)
    tiles = q.unflatten(1, (-1, block)).permute(1, 0, 3, 4, 2, 5).reshape(-1, documents * groups, heads * block, size)
    found = []
    for number, tile in enumerate(tiles):
        first = torch.tensor(number * block, device=x.device)
        found.append(attend(tile, first, keys[: number + 1], values[: number + 1], mixer.scaling))
    out = torch.stack(found).view(-1, documents, groups, heads, block, size).permute(1, 0, 4, 2, 3, 5)
    return linear(mixer.o_proj, out.reshape(documents, length, -1).to(x.dtype)), keys, values


def attention_step(mixer: Any, x: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention for the next token x (sequences, width) at position `at` (sequences); stores its key and value.

    Args:
        keys, values: (blocks, sequences, groups, block, d); no position lies beyond the last block.
    """
    q, k, v = (part.squeeze(1) for part in projected(mixer, x[:, None]))
    every, block = torch.arange(len(x), device=x.device), keys.shape[3]
    number, inside = at // block, at % block
    keys[number, every, :, inside], values[number, every, :, inside] = k, v
    used = int(number.max()) + 1
    out = attend_at(q.flatten(0, 1), at.repeat_interleave(q.shape[1]), keys[:used], values[:used], mixer.scaling)
    return linear(mixer.o_proj, out.view(len(x), -1).to(x.dtype))


def attend_at(queries: Tensor, at: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """`attend` for one position of each tile, to the same bits: only the products need whole tiles for that.

    Args:
        queries: (sequences * groups, heads of a group, d) at positions `at` (sequences * groups).
    """
    every, block = torch.arange(len(queries), device=queries.device), keys.shape[3]
    here = (every, slice(None), at % block)
    shape = (*queries.shape[:2], block)
    tile = queries.new_zeros(*shape, queries.shape[2])
    tile[here] = queries
    tile = tile.flatten(1, 2)
    scores = torch.stack([torch.bmm(tile, one.mT).view(*shape, block)[here] for one in keys.flatten(1, 2)])
    behind = torch.arange(len(keys) * block, device=at.device).view(-1, 1, 1, block)
    scores = scores.mul_(scaling).masked_fill_(behind > at[:, None, None], -torch.inf)
    powers = (scores - scores.amax((0, -1), keepdim=True)).exp()
    weights, seen = queries.new_zeros(*shape, block), list[Tensor]()
    for part, one in zip(powers, values.flatten(1, 2), strict=True):
        weights[here] = part
        seen.append(torch.bmm(weights.flatten(1, 2), one).view(*shape, -1)[here])
    return added(seen) / added(powers.sum(-1, keepdim=True))


TILED_EXPERTS = "tiled"
"""Name of this implementation in transformers; models that select it still run their hooks."""


def tiled_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of a `NemotronHExperts` module: hidden_states (tokens, d), the other two (tokens, k)."""
    weights = top_k_weights.to(hidden_states.dtype)
    return TiledExperts.apply(hidden_states, top_k_index, weights, self.up_proj, self.down_proj)


ALL_EXPERTS_FUNCTIONS.register(TILED_EXPERTS, tiled_experts_forward)


COPIED = 1 << 16
"""Up to this many elements, one product for all experts is faster, despite a copy of the matrices per tile."""


class TiledExperts(torch.autograd.Function):
    """(x (tokens, d), index (tokens, k), weight (tokens, k), up (e, f, d), down (e, d, f)) -> (tokens, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        slots = index.flatten()
        order = torch.argsort(slots, stable=True)
        counts = torch.bincount(slots, minlength=len(up))
        sizes = -(-counts // TILE) * TILE
        # Row of each slot after padding every expert's rows to whole tiles.
        begin = torch.repeat_interleave(sizes.cumsum(0) - sizes - (counts.cumsum(0) - counts), counts)
        row = torch.empty_like(order).index_copy_(0, order, begin + torch.arange(len(order), device=x.device))
        total = int(sizes.sum())
        token = row.new_zeros(total).index_copy_(0, row, torch.arange(len(slots), device=x.device) // index.shape[1])
        chosen = x.index_select(0, token)
        runs = sizes.tolist()
        positive = tiled_runs(chosen, up.mT, runs).relu_()
        result = tiled_runs(positive * positive, down.mT, runs)
        parts = result.index_select(0, row).view(*index.shape, -1)
        out = parts[:, 0] * weight[:, :1]
        for k in range(1, index.shape[1]):
            out += parts[:, k] * weight[:, k, None]
        ctx.save_for_backward(chosen, positive, parts, row, weight, up, down)
        ctx.runs = runs
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        chosen, positive, parts, row, weight, up, down = ctx.saved_tensors
        dweight = torch.bmm(parts, dout[..., None])[..., 0]
        dresult = dout.new_zeros(len(chosen), dout.shape[1])
        dresult.index_copy_(0, row, (dout[:, None] * weight[..., None]).flatten(0, 1))
        _, _, _, for_up, for_down = ctx.needs_input_grad
        ddown = outer_products(dresult, positive * positive, ctx.runs) if for_down else None
        dinner = products(dresult, down, ctx.runs).mul_(positive).mul_(2)
        dup = outer_products(dinner, chosen, ctx.runs) if for_up else None
        dx = products(dinner, up, ctx.runs).index_select(0, row).view(parts.shape[:2] + chosen.shape[1:]).sum(1)
        return dx, None, dweight, dup, ddown


def tiled_runs(rows: Tensor, matrices: Tensor, sizes: list[int]) -> Tensor:
    """Each run of rows times its own matrix (e, a, b), all in whole tiles."""
    tiles = rows.view(-1, TILE, rows.shape[-1])
    if tiles.numel() > COPIED:
        parts = zip(rows.split(sizes), matrices, strict=True)
        return torch.cat([tiled(part, matrix) for part, matrix in parts if len(part)])
    counts = torch.tensor([size // TILE for size in sizes], device=rows.device)
    expert = torch.repeat_interleave(torch.arange(len(sizes), device=rows.device), counts)
    return torch.bmm(tiles, matrices.mT.index_select(0, expert).mT).view(len(rows), -1)


@dataclass
class Routes:
    """Records the experts that the router chose, layer by layer; `rows` limits this to some rows."""

    rows: Tensor | None = None
    chosen: list[Tensor] = field(default_factory=list)

    def note(self, index: Tensor) -> None:
        """Record the choice of a layer: index (rows, k), ascending."""
        self.chosen.append(index if self.rows is None else index[self.rows])

    def take(self) -> Tensor | None:
        """All choices since the last call: (rows, layers, k); None for a model without experts."""
        found, self.chosen = self.chosen, []
        return torch.stack(found, 1) if found else None


def moe(mixer: Any, x: Tensor, routes: Routes | None = None) -> Tensor:
    """A `NemotronHMoE` for x (rows, d), rows in whole tiles."""
    index, weight = route(mixer.gate, x)
    if routes is not None:
        routes.note(index)
    inner = mixer.experts(_latent(mixer.fc1_latent_proj, x), index, weight)
    return _latent(mixer.fc2_latent_proj, inner) + mlp(mixer.shared_experts, x)


def mlp(module: Any, x: Tensor) -> Tensor:
    """A `NemotronHMLP`: down(relu(up(x)) ** 2)."""
    return linear(module.down_proj, module.act_fn(linear(module.up_proj, x)))


def _latent(module: nn.Module, x: Tensor) -> Tensor:
    return x if isinstance(module, nn.Identity) else linear(module, x)


def route(gate: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The experts of each row, ascending, and their weights; both (rows, k). See `NemotronHTopkRouter`."""
    return chosen(gate, product(x.float(), gate.weight.float()).sigmoid())


def chosen(gate: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the scores (rows, experts) of a `NemotronHTopkRouter`."""
    choice = scores.detach() + gate.e_score_correction_bias
    if gate.num_group > 1:
        grouped = choice.view(len(scores), gate.num_group, -1)
        best = grouped.topk(2, dim=-1)[0].sum(-1).topk(gate.topk_group, dim=-1)[1]
        allowed = torch.zeros_like(grouped[..., 0]).scatter_(1, best, 1)[..., None]
        choice = grouped.masked_fill(allowed == 0, -torch.inf).flatten(1)
    index = choice.topk(gate.top_k, dim=-1)[1].sort(-1)[0]
    weight = scores.gather(1, index)
    if gate.norm_topk_prob:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return index, weight * gate.routed_scaling_factor
