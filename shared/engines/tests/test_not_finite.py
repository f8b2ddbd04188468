"""What is said of a loss that is not finite: no learning rate can have made that of the first step."""

from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from nemotron_engines.transformers.callback import RunCallback
from nemotron_shared.config.training import CheckpointSection
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run

KEEP = CheckpointSection.model_construct(most_recent_k=1, keep_best=False)


@pytest.mark.parametrize(
    ("step", "logs", "remedy"),
    [
        (1, {"loss": float("nan"), "grad_norm": float("nan")}, "no rate is to blame"),
        (1, {"eval_loss": float("inf")}, "lower optimizer.lr"),
        (2, {"loss": float("nan")}, "lower optimizer.lr"),
    ],
)
def test_the_remedy_is_for_what_can_be_the_cause(
    tmp_path: Path, step: int, logs: dict[str, float], remedy: str
) -> None:
    callback = RunCallback(Run(tmp_path, "sft-model"), 1, KEEP, None)
    state, arguments = TrainerState(global_step=step), TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(UserError, match=f"^step {step}: .*no earlier checkpoint exists") as told:
        callback.on_log(arguments, state, TrainerControl(), logs)
    assert (told.value.remedy or "").startswith(remedy)
