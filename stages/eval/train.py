"""The uniform entry of the evaluation stage, which trains nothing: the work is in `evaluate.py`.

torchrun stages/eval/train.py -c tiny
python stages/eval/train.py run.model=sft:v2 evaluation.limit=100
"""

import sys
from pathlib import Path

from nemotron_data.sources.rows import own_files
from nemotron_engines.modeling.architecture import load_architecture, own_file
from nemotron_shared.runtime.engine import load_engine
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.eval import data_prep, launcher_config
from stages.eval.schema import EvalConfig

ENGINES = {
    "lm_eval": "stages.eval.engines.lm_eval",
    "nemo_evaluator": "stages.eval.engines.nemo_evaluator",
    "nemo_evaluator_launcher": "stages.eval.engines.nemo_evaluator_launcher",
}


def run(task: Task) -> Outcome:
    """Hand the work to the engine that the config names: it answers model by model, or does all of it elsewhere."""
    from stages.eval.evaluate import evaluate

    engine = load_engine(ENGINES, task.config.engine.name)
    return evaluate(task, engine.evaluate_model) if hasattr(engine, "evaluate_model") else engine.evaluate(task)


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
    sources=lambda config: own_files(own_file(config.model.architecture)),
    check=launcher_config.check,
    render=launcher_config.preview,
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    work=run,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
