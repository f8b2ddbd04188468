"""Record to which experts a model sends each token, when it samples and when it trains.

    with noting_routes(model) as routes:
        model(input_ids)                     # (1, 3) ids
    routes.passes(rows=1)                    # [(1, 3)]: one number for each token's experts in all layers

transformers 5 gives every mixture its choice in one way, regardless of what the router returns: `experts(hidden_states,
top_k_index, top_k_weights)`. So the index is read there, and the kinds of models need not be known. Llama 4 and JetMoE
are built differently; `unmeasured` names such a model.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from nemotron_engines.exact.scoring import code
from nemotron_engines.lora.kinds import without_adapters
from nemotron_engines.transformers.balance import experts_of


class Routes:
    """The choices of experts, pass by pass through the model."""

    def __init__(self) -> None:
        self._passes: list[list[Tensor]] = []

    def begin(self, *_: Any) -> None:
        """Forward hook of the model's body, called before each pass."""
        self._passes.append([])

    def note(self, experts: nn.Module, given: tuple[Tensor, ...]) -> None:
        """Forward hook of a layer's experts, called before them."""
        index = given[1].detach()
        self._passes[-1].append(index.reshape(-1, index.shape[-1]).sort(-1)[0])

    def passes(self, rows: int = -1, length: int = -1) -> list[Tensor]:
        """`code` of the experts at each position, (rows, length), for each pass; give either rows or length."""
        return [code(torch.cat(layers, 1)).view(rows, length) for layers in self._passes if layers]


@contextmanager
def noting_routes(model: nn.Module) -> Generator[Routes]:
    """Record the choices of experts inside this block; a model without experts makes none."""
    routes, body = Routes(), without_adapters(model).base_model
    hooks = [body.register_forward_pre_hook(routes.begin)]
    hooks += [layer.register_forward_pre_hook(routes.note) for _, layer in experts_of(model)]
    try:
        yield routes
    finally:
        for hook in hooks:
            hook.remove()


def unmeasured(model: nn.Module) -> str | None:
    """The class of a model with routers whose choices cannot be read; None if they can, or if it has none."""
    whole = without_adapters(model)
    parts = [part for part in whole.modules() if isinstance(part, PreTrainedModel)]
    declared = [one for part in parts for one in _listed(part.can_record_outputs.get("router_logits", ()))]
    routers = {getattr(one, "target_class", one) for one in declared} & {type(part) for part in whole.modules()}
    return type(whole).__name__ if routers and not experts_of(whole) else None


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else [value]
