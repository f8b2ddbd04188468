"""The mixture of experts: each expert's rows in whole tiles, the results of a token added in its own order."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from nemotron_engines.exact.products import TILE, TiledProduct, linear, tiled
from nemotron_engines.kernels.cpu_experts import outer_products, products

NAME = "tiled"
"""What transformers calls this implementation: a model that is asked for it runs it, hooks and all."""


def tiled_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of a `NemotronHExperts` module: hidden_states (tokens, d), the other two (tokens, k)."""
    weights = top_k_weights.to(hidden_states.dtype)
    return TiledExperts.apply(hidden_states, top_k_index, weights, self.up_proj, self.down_proj)


ALL_EXPERTS_FUNCTIONS.register(NAME, tiled_experts_forward)


COPIED = 1 << 16
"""Up to so many numbers, one product for all experts is worth a copy of the matrices for each tile."""


class TiledExperts(torch.autograd.Function):
    """(x (tokens, d), index (tokens, k), weight (tokens, k), up (e, f, d), down (e, d, f)) -> (tokens, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        slots = index.flatten()
        order = torch.argsort(slots, stable=True)
        counts = torch.bincount(slots, minlength=len(up))
        sizes = -(-counts // TILE) * TILE
        # Row of each slot when every expert's rows are filled up to whole tiles.
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
    """Which experts the router chose, layer by layer; what it gave for some rows is kept."""

    rows: Tensor | None = None
    chosen: list[Tensor] = field(default_factory=list)

    def note(self, index: Tensor) -> None:
        """Keep the choice of a layer: index (rows, k), rising."""
        self.chosen.append(index if self.rows is None else index[self.rows])

    def take(self) -> Tensor | None:
        """All since the last call: (rows, layers, k); None of a model without experts."""
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
    """The experts of each row, in rising order, and their weights; both (rows, k). See `NemotronHTopkRouter`."""
    scores = TiledProduct.apply(x.float(), gate.weight.float()).sigmoid()
    choice = scores.detach() + gate.e_score_correction_bias
    if gate.num_group > 1:
        grouped = choice.view(len(x), gate.num_group, -1)
        best = grouped.topk(2, dim=-1)[0].sum(-1).topk(gate.topk_group, dim=-1)[1]
        allowed = torch.zeros_like(grouped[..., 0]).scatter_(1, best, 1)[..., None]
        choice = grouped.masked_fill(allowed == 0, -torch.inf).flatten(1)
    index = choice.topk(gate.top_k, dim=-1)[1].sort(-1)[0]
    weight = scores.gather(1, index)
    if gate.norm_topk_prob:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return index, weight * gate.routed_scaling_factor
