"""An engine that trains nothing: it writes a model folder, and says what it was told."""

import json
import shutil
from collections.abc import Iterator
from typing import Literal

from nemotron_shared.config.schema import EngineSection
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem
from stages.sft.schema import SFTConfig


class ToySettings(EngineSection):
    """The engine's own block of values."""

    name: Literal["toy"]
    colour: Literal["red", "blue"]
    """What the model looks like."""


class Toy(Engine[SFTConfig[ToySettings]]):
    """A toy."""

    settings = ToySettings

    def check(self, config: SFTConfig[ToySettings], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Blue toys are sold in even numbers, and one that needs more memory than there is does not exist."""
        if config.engine.colour == "blue" and config.train.train_iters % 2:
            yield problem("blue toys need an even number of steps", "set train.train_iters=2", "train.train_iters")
        assert machine.memory > 0 and machine.free_disk > 0

    def command(self, module: str, processes: int) -> list[str]:
        """Started like any other, with a mark in the environment."""
        return ["env", "TOY_LAUNCHED=yes", *super().command(module, processes)]

    def render(self, config: SFTConfig[ToySettings], model: str | None) -> str:
        """What the toy would be told."""
        return f"a {config.engine.colour} toy for {config.train.train_iters} steps"

    def run(self, task: Task[SFTConfig[ToySettings]]) -> Outcome:
        """Write a folder."""
        output = task.run.fresh_output()
        (output / "config.json").write_text(json.dumps({"model_type": "toy", "colour": task.config.engine.colour}))
        shutil.copytree(task.input("data").path / "tokenizer", output, dirs_exist_ok=True)
        task.run.metrics.append(1, loss=1.0)
        return Outcome(output, {"step": task.config.train.train_iters})
