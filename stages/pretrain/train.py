"""Pretrain: token shards in, base model out.

torchrun stages/pretrain/train.py -c tiny
python stages/pretrain/train.py -c tiny train.train_iters=100 optimizer.lr=1e-3
"""

import sys
from pathlib import Path

from nemotron_data.sources.rows import own_files
from nemotron_engines.modeling.architecture import load_architecture, own_file
from nemotron_shared.runtime.engine import load_engine
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.pretrain import data_prep
from stages.pretrain.schema import PretrainConfig

ENGINES = {
    "transformers": "stages.pretrain.engines.transformers",
    "megatron_bridge": "stages.pretrain.engines.megatron_bridge",
    "automodel": "stages.pretrain.engines.automodel",
}


def train(task: Task) -> Outcome:
    """Hand the work to the engine that the config names."""
    return load_engine(ENGINES, task.config.engine.name).train(task)


STEP = Step(
    stage="pretrain",
    verb="train",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=PretrainConfig,
    produces="{family}-pretrain-model",
    artifact_type="ModelArtifact",
    sections=("engine", "model", "train", "optimizer", "scheduler", "checkpoint"),
    consumes=("data", "model"),
    prepare=data_prep.STEP,
    sources=lambda config: own_files(own_file(config.model.architecture)),
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    work=train,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
