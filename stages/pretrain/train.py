"""Pretrain: token shards in, base model out.

torchrun stages/pretrain/train.py -c tiny
python stages/pretrain/train.py -c tiny train.train_iters=100 optimizer.lr=1e-3
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
from nemotron_shared.engine.spec import Step
from nemotron_shared.step.step import run_program
from stages.pretrain import data_prep
from stages.pretrain.engines import ENGINES
from stages.pretrain.schema import PretrainConfig

STEP = Step(
    __file__,
    __doc__,
    PretrainConfig,
    run_engine,
    engines=ENGINES,
    prepare=data_prep.STEP,
    sources=own_sources,
    contents=own_architecture,
    check=partial(training_problems, chats=False),
    estimate=estimate_training,
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
