"""A training whose last step has its checkpoint makes no step more when it is continued, however many rows are left;
and one that ended before its last step is not finished."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_engines.transformers.checkpoints import InterruptibleTrainer
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import Interrupted
from nemotron_shared.tracking.run import Run

STEPS, EPOCHS = 5, 3


class Library:
    """The Trainer, which goes on in the epoch in which it was and looks at the number of steps after the next one."""

    def __init__(self, run: Run, step: int) -> None:
        self.stage_run, self.state, self.loaded = run, SimpleNamespace(global_step=step), list[str | None]()

    def _init_training_state(self, max_steps: int, *args: Any) -> tuple[int, int]:
        return 1, 2

    def training_step(self) -> str:
        return "done"

    def _finalize_training(self) -> list[str | None]:
        return self.loaded

    def _load_rng_state(self, checkpoint: str | None) -> None:
        self.loaded.append(checkpoint)


class Trainer(InterruptibleTrainer, Library):
    """As ours are built."""


@pytest.mark.parametrize("step", [STEPS - 1, STEPS])
def test_only_what_is_left_is_trained(tmp_path: Path, step: int) -> None:
    run = Run(tmp_path, "x")
    checkpoint = run.checkpoints / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMPLETE").write_text("{}")
    trainer = Trainer(run, step)
    epoch, batches = trainer._init_training_state(STEPS, 10, EPOCHS, str(checkpoint), None)
    is_over = step == STEPS
    assert list(range(epoch, EPOCHS)) == ([] if is_over else [1, 2])
    assert batches == (0 if is_over else 2)
    assert trainer._finalize_training() == ([str(checkpoint)] if is_over else []), "a validation may be due"


def test_what_ended_early_is_not_finished(tmp_path: Path) -> None:
    run = Run(tmp_path, "x")
    run.require_all_steps(5, 5)
    with pytest.raises(UserError, match="ended unexpectedly after step 0 of 4; nothing is published"):
        run.require_all_steps(0, 4)


def test_a_pass_is_given_up_only_while_the_weights_are_those_of_the_last_step(tmp_path: Path) -> None:
    run = Run(tmp_path, "x")
    trainer = Trainer(run, 1)
    with run.watched():
        run.stop_requested, trainer.may_be_given_up = True, False
        assert trainer.training_step() == "done", "the optimizer has moved them: the step is made to its end"
        trainer.may_be_given_up = True
        with pytest.raises(Interrupted):
            trainer.training_step()
