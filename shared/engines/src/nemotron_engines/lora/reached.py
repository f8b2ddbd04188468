"""Every adapter takes part, or training stops before the first weight has changed.

A fused kernel may take a layer's weight without calling the layer, and its adapter would then be trained in name only.
`lora_B` begins at zero and gets a gradient from the first step on; an adapter without one has been passed by.
"""

from typing import Any

from peft import PeftModel
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nemotron_engines.lora.adapt import layer_of
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed

SECOND = ("lora_B.", "lora_embedding_B.")


class AdaptersReached(TrainerCallback):
    """Looks once, at the first step that has any gradient: in RL a group without a winner has none."""

    def __init__(self) -> None:
        self._looked = False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare all adapters before the optimizer moves one.

        Raises:
            UserError: some have a gradient and others have none.
        """
        if not self._looked:
            self._looked = require_reached(kwargs["model"])


def require_reached(model: PeftModel) -> bool:
    """Whether gradients flow at all; those of all processes are alike, as they have been averaged.

    Raises:
        UserError: naming adapters that they do not reach.
    """
    second = {name: value for name, value in model.named_parameters() if any(one in name for one in SECOND)}
    reached = {name for name, value in second.items() if value.grad is not None and bool(value.grad.any())}
    passed_by = [layer_of(model, name) for name in second if name not in reached]
    if not reached or not passed_by:
        return bool(reached)
    if distributed.rank() != 0:
        raise SystemExit(2)  # every process sees the same gradients, and one says it
    more = f" and {len(passed_by) - 3} more" if len(passed_by) > 3 else ""
    raise UserError(
        f"engine.peft adapts {', '.join(passed_by[:3])}{more}, where no gradient arrives: a kernel takes the weight "
        "without calling the layer, so that the adapter would be trained in name only",
        f"leave it out: engine.peft.exclude_modules=['*{passed_by[0].rpartition('.')[2]}']",
    )
