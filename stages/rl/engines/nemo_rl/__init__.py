"""NeMo-RL's GRPO: rollouts by vLLM, training by Megatron or DTensor, all of it on Ray.

This process imports nothing of NeMo-RL, torch or Ray; it starts the checkout's own program with a config that we write.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from nemotron_engines.checks import bad_rows
from nemotron_engines.nemo_rl.needs import check_config
from nemotron_engines.nemo_rl.needs import needs as nemo_rl_needs
from nemotron_engines.nemo_rl.needs import render as nemo_rl_config
from nemotron_engines.nemo_rl.settings import NeMoRLGRPOEngine
from nemotron_engines.nemo_rl.translate import Places, placeholders
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem
from stages.rl.engines.nemo_rl.rows import row_fault
from stages.rl.schema import RLConfig

Config = RLConfig[NeMoRLGRPOEngine]
ALGORITHM = "grpo"


class NeMoRL(Engine[Config]):
    """NeMo-RL's GRPO, started as one driver."""

    settings = NeMoRLGRPOEngine
    tracks_itself = ("wandb", "mlflow")

    def check(self, config: Config, inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Check where the rows come from, then NeMo-RL's config."""
        if (other := config.other_method) is not None:
            yield problem(f"engine nemo_rl trains by GRPO here, and not by {other}", "set engine=trl", other)
            return
        if config.run.reward_model is not None:
            yield problem("engine nemo_rl has its own rewards", "set run.reward_model=null", "run.reward_model")
        own_data = config.engine.environment == "base"
        if own_data and config.run.data is not None:
            yield problem(
                f"engine.environment: base uses the data set in engine.base, but run.data is {config.run.data}",
                "set run.data=null, or engine.environment=math or nemo_gym",
            )
        elif not own_data and (config.run.data is None) == (config.engine.train_rows is None):
            given = "neither is set" if config.run.data is None else "both are set"
            remedy = "set run.data to a data artifact, or set run.data=null and engine.train_rows=FILE"
            yield problem(f"the rows come from run.data or from engine.train_rows, but {given}", remedy)
        else:
            check_config(config, ALGORITHM, places_without_run(config))

    def needs(self, config: Config, inputs: Inputs, machine: Machine) -> Needs:
        """The user's rows, a checkout of the right version, and GPUs."""
        engine = config.engine
        rows = {"engine.train_rows": engine.train_rows, "engine.valid_rows": engine.valid_rows}
        fault = partial(row_fault, environment=engine.environment)
        wrong = bad_rows(rows, fault, f"use rows that environment '{engine.environment}' can read")
        own = tuple(wrong) if machine.sees_files else ()
        theirs = nemo_rl_needs(config, inputs, machine, ALGORITHM, places_without_run(config))
        return replace(theirs, others=(*own, *theirs.others))

    def render(self, config: Config, model: str | None) -> str:
        """NeMo-RL's config, for people."""
        return nemo_rl_config(config, ALGORITHM, places_without_run(config, model))

    def run(self, task: Task[Config]) -> Outcome:
        """Train with GRPO."""
        from stages.rl.engines.nemo_rl.train import train

        return train(task)


def places_without_run(config: Config, model: str | None = None) -> Places:
    """Names in place of paths, before a run has started."""
    engine = config.engine
    ours = engine.environment != "base"
    valid = ours and (engine.train_rows is None or engine.valid_rows is not None)
    return placeholders(model, train=ours, valid=valid, environments=engine.servers)
