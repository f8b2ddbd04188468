"""Check that every adapter gets a gradient, before the first weight changes.

A fused kernel may read a layer's weight without calling the layer, so the layer's adapter would never train. `lora_B`
starts at zero and gets a gradient from the first step on; an adapter without one was bypassed.
"""

from typing import Any

from peft import PeftModel
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from nemotron_engines.lora.adapt import layer_of
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed

SECOND = ("lora_B.", "lora_embedding_B.")


class AdaptersReached(TrainerCallback):
    """Checks once, at the first step with any gradient: in RL, groups with equal rewards have none."""

    def __init__(self) -> None:
        self._looked = False

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare all adapters before the optimizer changes one.

        Raises:
            UserError: some have a gradient and others have none.
        """
        if not self._looked:
            self._looked = require_reached(kwargs["model"])


def require_reached(model: PeftModel) -> bool:
    """Whether there are any gradients; they are averaged, so all processes see the same ones.

    Raises:
        UserError: some adapters get no gradient; the message names them.
    """
    second = {name: value for name, value in model.named_parameters() if any(one in name for one in SECOND)}
    reached = {name for name, value in second.items() if value.grad is not None and bool(value.grad.any())}
    passed_by = [layer_of(model, name) for name in second if name not in reached]
    if not reached or not passed_by:
        return bool(reached)
    if distributed.rank() != 0:
        raise SystemExit(2)  # every process sees the same gradients; one prints the error
    more = f" and {len(passed_by) - 3} more" if len(passed_by) > 3 else ""
    raise UserError(
        f"engine.peft adapts {', '.join(passed_by[:3])}{more}, which get no gradient: a kernel reads the weight "
        "without calling the layer, so the adapter would never train",
        f"leave it out: engine.peft.exclude_modules=['*{passed_by[0].rpartition('.')[2]}']",
    )
