"""Reinforcement learning: an instruct model, and questions with checkable answers or pairs of answers in, aligned
model out.

torchrun stages/rl/train.py -c tiny
python stages/rl/train.py -c local run.model=/models/instruct grpo.num_prompts_per_step=32
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from nemotron_data.gym.catalogue import contents_of
from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import load_architecture, own_sources
from nemotron_engines.nemo_rl.settings import NeMoRLGRPOEngine
from nemotron_shared.stages import STAGES
from nemotron_shared.step.step import (
    Made,
    Preview,
    Start,
    Step,
    open_run,
    plan_run,
    preview,
    publish,
    reuse,
    run_engine,
    run_program,
)
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
    other_results=STAGES["rl"].other_results,
    artifact_type="ModelArtifact",
    sections=(
        "engine",
        "model",
        "train",
        "grpo",
        "dpo",
        "reward_modeling",
        "distillation",
        "rewards",
        "optimizer",
        "scheduler",
        "checkpoint",
    ),
    consumes=("data", "model"),
    extra=("teacher", "reward_model"),
    prepare=data_prep.STEP,
    check=rl_problems,
    sources=lambda config: own_sources(config.model, config.engine),
    contents=lambda config: {
        "model.architecture": load_architecture(config.model.architecture, {}),
        **contents_of("engine.environments", getattr(config.engine, "environments", None)),
        **contents_of("engine", config.engine if isinstance(config.engine, NeMoRLGRPOEngine) else None),
    },
    engines=ENGINES,
    chosen=lambda config: [REWARDS.module_of(reward.name) for reward in config.rewards],
    estimate=estimate_training,
)


def train(start: Start) -> Made | Preview:
    """Train a model on the questions, or reuse an identical earlier result."""
    if start.arguments.dry_run:
        return preview(STEP, start)
    plan = plan_run(STEP, start, data_prep.prepare_data)
    if plan.finished is not None:
        return reuse(STEP, plan, plan.finished)
    with open_run(STEP, plan) as run:
        if run.finished is not None:
            return Made(run.finished, reused=True)
        return publish(STEP, plan, run, run_engine(plan.task(run)))


def main(words: Sequence[str] | None = None) -> int:
    """Load the config from the command line and train; return the exit code."""
    return run_program(STEP, train, words)


if __name__ == "__main__":
    sys.exit(main())
