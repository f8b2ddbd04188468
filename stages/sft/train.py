"""Fine-tune: packed conversations and a base model in, instruct model out.

torchrun stages/sft/train.py -c tiny
python stages/sft/train.py run.model=/models/nemotron train.train_iters=500
"""

import sys
from pathlib import Path
from typing import Any

from nemotron_shared.config.automodel_section import AutomodelEngine
from nemotron_shared.config.nemo_rl_section import NeMoRLSFTEngine
from nemotron_shared.data.rows import own_files
from nemotron_shared.modeling.architecture import own_file
from nemotron_shared.runtime.engine import load_engine
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.sft import data_prep
from stages.sft.schema import SFTConfig

ENGINES = {
    "transformers": "stages.sft.engines.transformers",
    "megatron_bridge": "stages.sft.engines.megatron_bridge",
    "automodel": "stages.sft.engines.automodel",
    "nemo_rl": "stages.sft.engines.nemo_rl",
}


def train(task: Task) -> Outcome:
    """Hand the work to the engine that the config names."""
    return load_engine(ENGINES, task.config.engine.name).train(task)


def chat_files(engine: Any) -> tuple[str | None, ...]:
    """Files that an engine reads besides the data artifact."""
    return engine.own_files() if isinstance(engine, AutomodelEngine | NeMoRLSFTEngine) else ()


def check(config: SFTConfig) -> None:
    """What an engine can say about its config before any work."""
    if isinstance(config.engine, NeMoRLSFTEngine):
        load_engine(ENGINES, config.engine.name).check(config)


def render(config: SFTConfig, model: str | None) -> str | None:
    """What another program is told, where the engine starts one."""
    return (
        load_engine(ENGINES, config.engine.name).render(config, model)
        if isinstance(config.engine, NeMoRLSFTEngine)
        else None
    )


STEP = Step(
    stage="sft",
    verb="train",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=SFTConfig,
    produces="{family}-sft-model",
    artifact_type="ModelArtifact",
    sections=("engine", "model", "train", "optimizer", "scheduler", "checkpoint"),
    consumes=("data", "model"),
    prepare=data_prep.STEP,
    sources=lambda config: own_files(own_file(config.model.architecture), *chat_files(config.engine)),
    work=train,
    check=check,
    render=render,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
