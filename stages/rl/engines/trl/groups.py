"""Rows that teach nothing cost no backward pass.

Where all completions of a group have one reward, their advantages are zero, and so is what they add to the gradient;
in a training that goes well that is soon half of all rows. The same holds for completions that were cut and are left
out of the loss (`grpo.overlong_filtering`). Their log-probabilities are computed without a graph: for
the entropy that is logged, and for the count of tokens that the loss is divided by.
"""

from typing import Any

import torch
from torch import Tensor

from nemotron_shared.runtime import distributed
from stages.rl.engines.trl.library import GRPOTrainer


class TeachingRowsTrainer(GRPOTrainer):
    """A GRPOTrainer whose backward pass runs through the rows with an advantage alone.

    Not where every row has a gradient all the same (a KL penalty, a bonus for entropy, a loss that balances experts),
    and not with a sharded model, whose processes must all make the same number of passes.
    """

    skips_rows = False
    row_order: Tensor | None = None
    """Where each row of the micro batch stands among those that were passed through the model, if not in its place."""
    _teaching: Tensor | None = None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        advantages, mask = inputs["advantages"], inputs["completion_mask"]
        teaching = (advantages != 0).reshape(len(advantages), -1).any(1) & mask.bool().any(1)
        others = self.beta or self._entropy_bonus_enabled or self.aux_loss_enabled
        # several processes wait for each other's gradients, so that a pass of theirs needs a row that has one
        alone = distributed.world_size() == 1
        if self.skips_rows and model.training and not others and not teaching.all() and (alone or teaching.any()):
            self._teaching = teaching
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._teaching = None

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows that teach with a graph, the others without, put together again in their order."""
        whole = super()._get_per_token_logps_and_entropies
        teaching, self.row_order = self._teaching, None
        if teaching is None:
            return whole(model, input_ids, attention_mask, *args, **kwargs)
        rows, rest = teaching.nonzero().flatten(), (~teaching).nonzero().flatten()
        taught = whole(model, input_ids[rows], attention_mask[rows], *args, **kwargs) if len(rows) else None
        with torch.no_grad():  # past what would wait for other processes, which may have other rows
            alone = self.accelerator.unwrap_model(model)
            untaught = whole(alone, input_ids[rest], attention_mask[rest], *args, **kwargs)
        if taught is None:
            return untaught[0] + _nothing(alone), untaught[1], None
        self.row_order = order = torch.cat([rows, rest]).argsort()
        logps, entropies = (torch.cat([one, other])[order] for one, other in zip(taught[:2], untaught[:2], strict=True))
        return logps, entropies, None


def _nothing(model: torch.nn.Module) -> Tensor:
    """0, with a gradient of 0 for each weight."""
    return torch.stack([0 * weight.sum() for weight in model.parameters() if weight.requires_grad]).sum()
