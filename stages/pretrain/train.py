"""Pretrain: token shards in, base model out.

torchrun stages/pretrain/train.py -c tiny
python stages/pretrain/train.py -c tiny train.train_iters=100 optimizer.lr=1e-3
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nemotron_engines.checks import training_problems
from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import load_architecture, own_sources
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
    check=partial(training_problems, chats=False),
    sources=lambda config: own_sources(config.model, config.engine),
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    estimate=estimate_training,
)


def train(start: Start) -> Made | Preview:
    """Pretrain a model on the token shards, or reuse an identical earlier result."""
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
