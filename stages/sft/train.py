"""Fine-tune: packed conversations and a base model in, instruct model out.

torchrun stages/sft/train.py -c tiny
python stages/sft/train.py -c local run.model=/models/nemotron train.train_iters=500
"""

import sys
from collections.abc import Sequence
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
from stages.sft import data_prep
from stages.sft.ends import end_answers, end_of_answers
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
    estimate=estimate_training,
)


def train(start: Start) -> Made | Preview:
    """Fine-tune a model on the packed conversations, or reuse an identical earlier result."""
    if start.arguments.dry_run:
        return preview(STEP, start)
    plan = plan_run(STEP, start, data_prep.prepare_data)
    if plan.finished is not None:
        return reuse(STEP, plan, plan.finished)
    with open_run(STEP, plan) as run:
        if run.finished is not None:
            return Made(run.finished, reused=True)
        task = plan.task(run)
        end = end_of_answers(task)  # before the work, because it refuses a template that it cannot read
        outcome = run_engine(task)
        end_answers(task, outcome, end)
        return publish(STEP, plan, run, outcome)


def main(words: Sequence[str] | None = None) -> int:
    """Load the config from the command line and train; return the exit code."""
    return run_program(STEP, train, words)


if __name__ == "__main__":
    sys.exit(main())
