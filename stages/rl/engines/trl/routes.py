"""Which experts transformers' own passes choose, noted by hooks on the routers while they run."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHTopkRouter

from nemotron_engines.exact.scoring import code


class Routes:
    """What the routers chose, pass by pass."""

    def __init__(self, routers: int) -> None:
        self._routers = routers
        self._chosen: list[Tensor] = []

    def note(self, router: nn.Module, given: tuple[Tensor], result: tuple[Tensor, ...]) -> None:
        """A forward hook of a router, whose result ends with the experts of each token, (tokens, k)."""
        self._chosen.append(result[2].sort(-1)[0])

    def passes(self, rows: int = -1, length: int = -1) -> list[Tensor]:
        """The `code` of the experts of each position, (rows, length), for each pass; the one or the other is given."""
        codes = []
        for first in range(0, len(self._chosen), self._routers):
            layers = torch.stack(self._chosen[first : first + self._routers], 1)
            codes.append(code(layers).view(rows, length))
        return codes


@contextmanager
def noting_routes(model: nn.Module) -> Generator[Routes]:
    """What the model's routers choose meanwhile; nothing in one without experts."""
    routers = [module for module in model.modules() if isinstance(module, NemotronHTopkRouter)]
    routes = Routes(len(routers))
    hooks = [router.register_forward_hook(routes.note) for router in routers]
    try:
        yield routes
    finally:
        for hook in hooks:
            hook.remove()
