"""Fine-tune: packed conversations and a base model in, instruct model out.

torchrun stages/sft/train.py -c tiny
python stages/sft/train.py -c local run.model=/models/nemotron train.train_iters=500
"""

import sys
from pathlib import Path

from nemotron_engines.checks import training_problems
from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import load_architecture, own_sources
from nemotron_shared.runtime.step import Step
from stages.sft import data_prep
from stages.sft.ends import train
from stages.sft.engines import ENGINES
from stages.sft.schema import SFTConfig

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
    check=training_problems,
    sources=lambda config: own_sources(config.model, config.engine),
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    work=train,
    estimate=estimate_training,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
