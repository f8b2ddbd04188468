"""The uniform entry of the evaluation stage, which trains nothing: the work is in `evaluate.py`.

torchrun stages/eval/train.py -c tiny
python stages/eval/train.py -c local run.model=sft:v2 evaluation.limit=100
"""

import sys
from pathlib import Path

from nemotron_engines.modeling.architecture import load_architecture, own_sources
from nemotron_shared.runtime.engine import run_engine
from nemotron_shared.runtime.step import Step
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
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    work=run_engine,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
