"""Entry point of the evaluation stage, named as in the other stages; `evaluate.py` does the work.

torchrun stages/eval/train.py -c tiny
python stages/eval/train.py -c local run.model=sft:v2 evaluation.limit=100
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from nemotron_data.gym.catalogue import contents_of
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
from stages.eval import data_prep
from stages.eval.engines import ENGINES
from stages.eval.schema import EvalConfig
from stages.eval.tasks import task_problems

STEP = Step(
    stage="eval",
    verb="train",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=EvalConfig,
    produces="{family}-eval-results",
    artifact_type="EvalResultsArtifact",
    sections=("engine", "model", "evaluation"),
    consumes=("data", "model"),
    optional=("base", "sft"),
    prepare=data_prep.STEP,
    check=task_problems,
    sources=lambda config: own_sources(config.model, config.engine),
    contents=lambda config: {
        "model.architecture": load_architecture(config.model.architecture, {}),
        **contents_of("evaluation.environments", config.evaluation.environments),
    },
    engines=ENGINES,
)


def train(start: Start) -> Made | Preview:
    """Score the models, or reuse an identical earlier result."""
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
    """Load the config from the command line and evaluate; return the exit code."""
    return run_program(STEP, train, words)


if __name__ == "__main__":
    sys.exit(main())
