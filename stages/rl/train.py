"""Reinforce: questions with checkable answers and an instruct model in, aligned model out.

torchrun stages/rl/train.py -c tiny
python stages/rl/train.py run.model=/models/instruct grpo.num_prompts_per_step=32
"""

import sys
from pathlib import Path

from nemotron_shared.config.nemo_rl_section import NeMoRLEngine
from nemotron_shared.data.rows import own_files
from nemotron_shared.modeling.architecture import own_file
from nemotron_shared.runtime.engine import load_engine
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.rl import data_prep
from stages.rl.schema import RLConfig

ENGINES = {
    "trl": "stages.rl.engines.trl",
    "nemo_rl": "stages.rl.engines.nemo_rl",
}


def train(task: Task) -> Outcome:
    """Hand the work to the engine that the config names."""
    return load_engine(ENGINES, task.config.engine.name).train(task)


def check(config: RLConfig) -> None:
    """What an engine can say about its config before any work."""
    if isinstance(config.engine, NeMoRLEngine):
        load_engine(ENGINES, config.engine.name).check(config)


def render(config: RLConfig, model: str | None) -> str | None:
    """What another program is told, where the engine starts one."""
    return (
        load_engine(ENGINES, config.engine.name).render(config, model)
        if isinstance(config.engine, NeMoRLEngine)
        else None
    )


STEP = Step(
    stage="rl",
    verb="train",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=RLConfig,
    produces="{family}-rl-model",
    artifact_type="ModelArtifact",
    sections=("engine", "model", "train", "grpo", "rewards", "optimizer", "scheduler", "checkpoint"),
    consumes=("data", "model"),
    prepare=data_prep.STEP,
    sources=lambda config: own_files(own_file(config.model.architecture)),
    work=train,
    check=check,
    render=render,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
