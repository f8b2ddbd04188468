"""Measure how evenly each layer's router distributes training tokens over the experts."""

from typing import Any

import torch
from torch import Tensor, nn

from nemotron_engines.real_rows import note_real_rows, tokens_of_experts
from nemotron_shared.runtime.metrics import EXPERT_METRIC


class ExpertLoad:
    """Counts the tokens of each expert while a model trains; validation, sampling and padding do not count."""

    def __init__(self) -> None:
        self._counts: dict[str, Tensor] = {}

    def watch(self, model: nn.Module) -> None:
        """Start counting; does nothing for a model without experts."""
        model.register_forward_pre_hook(_note_padding, with_kwargs=True)
        for name, module in model.named_modules():
            if (gate := getattr(module, "gate", None)) is not None and hasattr(module, "experts"):
                layer = next((part for part in name.split(".") if part.isdigit()), name)
                layer = f"mtp.{layer}" if name.startswith("mtp.") else layer
                module.experts.register_forward_pre_hook(self._counter(layer, len(gate.weight)))

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
