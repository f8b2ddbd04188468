"""Reinforce: questions with checkable answers and an instruct model in, aligned model out.

torchrun stages/rl/train.py -c tiny
python stages/rl/train.py -c local run.model=/models/instruct grpo.num_prompts_per_step=32
"""

import sys
from pathlib import Path

from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import load_architecture, own_sources
from nemotron_shared.runtime.engine import run_engine
from nemotron_shared.runtime.step import Step
from stages.rl import data_prep
from stages.rl.engines import ENGINES
from stages.rl.rewards import REWARDS
from stages.rl.schema import RLConfig
from stages.rl.sizes import rl_problems

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
    check=rl_problems,
    sources=lambda config: own_sources(config.model, config.engine),
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    chosen=lambda config: [REWARDS.module_of(reward.name) for reward in config.rewards],
    work=run_engine,
    estimate=estimate_training,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
