"""Pretrain: token shards in, base model out.

torchrun stages/pretrain/train.py -c tiny
python stages/pretrain/train.py -c tiny train.train_iters=100 optimizer.lr=1e-3
"""

import sys
from pathlib import Path

from nemotron_engines.checks import training_problems
from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import load_architecture, own_sources
from nemotron_shared.runtime.engine import run_engine
from nemotron_shared.runtime.step import Step
from stages.pretrain import data_prep
from stages.pretrain.engines import ENGINES
from stages.pretrain.schema import PretrainConfig

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
    check=training_problems,
    sources=lambda config: own_sources(config.model, config.engine),
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    work=run_engine,
    estimate=estimate_training,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
