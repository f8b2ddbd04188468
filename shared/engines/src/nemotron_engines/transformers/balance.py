"""Load balancing of a mixture of experts with sigmoid router, as megatron-core defines it, and its metrics.

After each step every router's correction, which counts when experts are chosen and not when they are weighted, moves
by the update rate: up for experts with less than an even share of the step's tokens, down for those with more.

The sequence auxiliary loss of one row is  E * sum over experts of (share of choices * mean normalised score),  1 where
the load is even. Its choices are those without the correction. A step's is the mean over rows, its gradient is added
to that of the loss.
"""

import inspect
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nemotron_engines.kernels.experts import note_real_rows, tokens_of_experts
from nemotron_shared.config.schema import TransformersEngine
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import EXPERT_METRIC

PREDICTING = "mtp."
"""Name prefix of the multi-token prediction block, which one pass of the model applies repeatedly."""


class LoadBalancing(TrainerCallback):
    """Watches the routers of one model; each counted forward pass runs inside `passing`.

    Args:
        predictions: applications of the prediction block per pass.
    """

    def __init__(self, model: nn.Module, engine: TransformersEngine, predictions: int = 0) -> None:
        self.rate, self.coefficient = engine.moe_router_bias_update_rate, engine.moe_aux_loss_coeff
        self.routers = [
            Router(self, layer, predictions if name.startswith(PREDICTING) else 1) for name, layer in _routed(model)
        ]
        if not self.routers:
            what = "engine.moe_router_bias_update_rate, engine.moe_aux_loss_coeff: the model has no router with a "
            raise UserError(f"{what}correction", "set both to 0")
        self.counting = False
        self.weight = 1.0
        self.real: Tensor | None = None

    @contextmanager
    def passing(self, weight: float, real: Tensor | None) -> Generator[None]:
        """Context of a micro batch's forward pass; recomputation in the backward pass is not counted again.

        Args:
            weight: the micro batch's share of this process's step.
            real: (rows, tokens), false for padding; None without padding.
        """
        self.counting, self.weight, self.real = True, weight, real
        try:
            yield
        finally:
            self.counting = False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Update the corrections from the tokens of all processes."""
        tokens = _summed(torch.stack([router.tokens for router in self.routers])).double()
        moves = self.rate * torch.sign(tokens.mean(1, keepdim=True) - tokens).float()
        for router, move in zip(self.routers, moves, strict=True):
            router.correction.add_(move)
            router.begin()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start counting, on the model's final device."""
        for router in self.routers:
            router.begin()

    def take(self) -> dict[str, float]:
        """The unweighted auxiliary loss since the last call: mean over layers, rows and processes."""
        if not self.coefficient:
            return {}
        loss = torch.stack([router.loss for router in self.routers]).mean()
        for router in self.routers:
            router.loss = torch.zeros_like(router.loss)
        return {"load_balancing_loss": float(_summed(loss)) / distributed.world_size()}


class Router:
    """The router of one layer, with its counts since the last step.

    Args:
        repeats: passes through it per pass of the model, which count together as one auxiliary loss.
    """

    def __init__(self, balancing: LoadBalancing, layer: Any, repeats: int) -> None:
        self.balancing, self.gate, self.repeats = balancing, layer.gate, repeats
        self.loss = torch.zeros(())
        self.begin()
        self._logits: Tensor | None = None
        layer.gate.register_forward_hook(self._scored)
        layer.experts.register_forward_pre_hook(self._chosen)

    @property
    def correction(self) -> Tensor:
        """Saved and loaded with the weights."""
        return self.gate.e_score_correction_bias

    def begin(self) -> None:
        """Reset the counts for a new step."""
        self.tokens = torch.zeros_like(self.correction, dtype=torch.int64)

    def _scored(self, gate: nn.Module, given: tuple[Tensor, ...], made: Any) -> None:
        logits = made if isinstance(made, Tensor) else made[0]
        self._logits = logits.view(*given[0].shape[:-1], -1) if gate.training else None

    def _chosen(self, experts: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        logits, self._logits = self._logits, None
        if logits is None:
            return None
        hidden, index, weights = given
        if self.balancing.counting:
            self._count(index)
        if not self.balancing.coefficient:
            return None
        loss = sequence_loss(logits, index.shape[1], self.balancing.real) / self.repeats
        if self.balancing.counting:
            self.loss = self.loss.to(loss.device) + self.balancing.weight * loss.detach()
        return hidden, index, _Beside.apply(weights, self.balancing.coefficient * self.balancing.weight * loss)

    def _count(self, index: Tensor) -> None:
        self.tokens += tokens_of_experts(index, len(self.tokens))


def sequence_loss(logits: Tensor, top_k: int, real: Tensor | None) -> Tensor:
    """Mean of the unweighted auxiliary loss over rows.

    Args:
        logits: (rows, tokens, experts), before the sigmoid.
        top_k: experts per token.
        real: (rows, tokens), false for padding; None without padding.
    """
    scores = logits.float().sigmoid()
    scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
    chosen = torch.zeros_like(scores).scatter(-1, scores.topk(top_k).indices, 1.0)
    real = torch.ones_like(scores[..., :1]) if real is None else real[..., None].to(scores.dtype)
    tokens = real.sum(1)
    mean_score, share = (scores * real).sum(1) / tokens, (chosen * real).sum(1) / (top_k * tokens)
    return scores.shape[-1] * (mean_score * share).sum(-1).mean()


class _Beside(torch.autograd.Function):
    """Returns a tensor unchanged, and sends a gradient of 1 into an attached loss."""

    @staticmethod
    def forward(ctx: Any, passed: Tensor, loss: Tensor) -> Tensor:
        return passed.view_as(passed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].new_ones(())


def _summed(values: Tensor) -> Tensor:
    """Sum over all processes."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(values)
    return values


def _routed(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Layers whose router has a correction, by name."""
    for name, layer in model.named_modules():
        if hasattr(getattr(layer, "gate", None), "e_score_correction_bias") and hasattr(layer, "experts"):
            yield name, layer


INDEX = ("top_k_index", "router_indices")
"""Names of the second argument of experts, in transformers 5.23: (tokens, k) int64."""


def experts_of(model: nn.Module) -> list[tuple[str, Any]]:
    """The experts of each layer that has some, by name, in modules that take an index of them.

    The router's name differs (`gate`, `router`), and so does what it returns; the call of the experts does not.
    """
    return [(name, module) for name, module in model.named_modules() if _second_argument(type(module)) in INDEX]


def _second_argument(kind: type[nn.Module]) -> str | None:
    """Name of the argument after the hidden states; None without one."""
    names = [*inspect.signature(kind.forward).parameters]
    return names[2] if len(names) > 2 else None


# How evenly a router spreads the tokens of a training over the experts of each layer.


class ExpertLoad:
    """Counts the tokens of each expert while a model trains; validation, sampling and padding do not count."""

    def __init__(self) -> None:
        self._counts: dict[str, Tensor] = {}

    def watch(self, model: nn.Module) -> None:
        """Start counting; does nothing for a model without experts."""
        model.register_forward_pre_hook(_note_padding, with_kwargs=True)
        for name, module in experts_of(model):
            whole = name.removeprefix("base_model.model.")  # with adapters
            layer = next((part for part in whole.split(".") if part.isdigit()), whole)
            layer = f"{PREDICTING}{layer}" if whole.startswith(PREDICTING) else layer
            module.register_forward_pre_hook(self._counter(layer, module.num_experts))

    def take(self) -> dict[str, float]:
        """Per layer, the busiest expert's tokens over an even share, since the last call: {"expert_load/3": 1.8}.

        Collective: every process gets the figures over all processes.
        """
        counts, self._counts = self._counts, {}
        if not counts:
            return {}
        tokens = torch.stack(list(counts.values()))
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(tokens)
        busiest = (tokens.amax(1) / tokens.sum(1) * tokens.shape[1]).tolist()  # waits for the GPU once for all layers
        return {EXPERT_METRIC.format(layer=layer): round(load, 3) for layer, load in zip(counts, busiest, strict=True)}

    def _counter(self, layer: str, experts: int) -> Any:
        def count(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            if module.training and torch.is_grad_enabled():
                found = tokens_of_experts(given[1], experts)
                self._counts[layer] = self._counts[layer] + found if layer in self._counts else found

        return count


def _note_padding(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:  # without a mask, the trainer has already set it
        note_real_rows(mask)
