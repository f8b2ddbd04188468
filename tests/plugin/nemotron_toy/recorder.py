"""An engine that writes down what it would train, and publishes the model that it was given.

nemotron super3 sft -c tiny engine=recorder run.model=FOLDER

record.json, beside the weights:
{"config": {"train": {"train_iters": 2, ...}, ...}, "rows": 41, "sequences": 216,
 "steps": [{"step": 1, "rows": [17, 3, ...], "tokens": 498, "learnt": 301}, ...]}
"""

from collections.abc import Iterator
from typing import Literal

from nemotron_shared.config.schema import EngineSection
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem
from stages.sft.schema import SFTConfig


class RecorderSettings(EngineSection):
    """The engine's own block of values: nothing but its name."""

    name: Literal["recorder"]


class Recorder(Engine[SFTConfig[RecorderSettings]]):
    """Writes down config, rows and tokens of each step. It reads every setting: all of them are in the record."""

    settings = RecorderSettings

    def check(self, config: SFTConfig[RecorderSettings], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """There has to be a model to publish: this engine makes none, not even of random weights."""
        if inputs["model"] is None:
            what = "engine=recorder publishes a copy of the model that it is given, and there is none"
            yield problem(what, "name one: run.model=NAME:vN, or a folder", "run.model")

    def run(self, task: Task[SFTConfig[RecorderSettings]]) -> Outcome:
        """Record, with NumPy and torch."""
        from nemotron_toy.record import record

        return record(task)
