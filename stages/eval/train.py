"""Entry point of the evaluation stage, named as in the other stages; `evaluate.py` does the work.

torchrun stages/eval/train.py -c tiny
python stages/eval/train.py -c local run.model=sft:v2 evaluation.limit=100
"""

import sys
from functools import partial
from importlib.util import find_spec

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

from nemotron_data.gym.catalogue import contents_of
from nemotron_engines.modeling.architecture import own_architecture, own_sources
from nemotron_shared.engine.engine import run_engine
from nemotron_shared.engine.spec import Step
from nemotron_shared.step.step import run_program
from stages.eval import data_prep
from stages.eval.engines import ENGINES
from stages.eval.schema import EvalConfig
from stages.eval.tasks import task_problems

STEP = Step(
    __file__,
    __doc__,
    EvalConfig,
    run_engine,
    engines=ENGINES,
    prepare=data_prep.STEP,
    check=task_problems,
    sources=own_sources,
    contents=lambda config: {
        **own_architecture(config),
        **contents_of("evaluation.environments", config.evaluation.environments),
    },
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
