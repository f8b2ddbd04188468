"""Fine-tune: packed conversations and a base model in, instruct model out.

torchrun stages/sft/train.py -c tiny
python stages/sft/train.py -c local run.model=/models/nemotron train.train_iters=500
"""

import sys
from functools import partial
from importlib.util import find_spec

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

from nemotron_engines.checks import training_problems
from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import own_architecture, own_sources
from nemotron_shared.engine.engine import run_engine
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.step.step import run_program
from stages.sft import data_prep
from stages.sft.ends import end_answers, end_of_answers
from stages.sft.engines import ENGINES
from stages.sft.schema import SFTConfig


def train(task: Task[SFTConfig]) -> Outcome:
    """Fine-tune a model on the packed conversations; what it answers ends as the conversations do."""
    end = end_of_answers(task)  # before the work, because it refuses a template that it cannot read
    outcome = run_engine(task)
    end_answers(task, outcome, end)
    return outcome


STEP = Step(
    __file__,
    __doc__,
    SFTConfig,
    train,
    engines=ENGINES,
    prepare=data_prep.STEP,
    check=training_problems,
    sources=own_sources,
    contents=own_architecture,
    estimate=estimate_training,
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
