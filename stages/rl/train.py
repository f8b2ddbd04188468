"""Reinforcement learning: an instruct model, and questions with checkable answers or pairs of answers in, aligned
model out.

torchrun stages/rl/train.py -c tiny
python stages/rl/train.py -c local run.model=/models/instruct grpo.num_prompts_per_step=32
"""

import sys
from functools import partial
from importlib.util import find_spec

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

from nemotron_data.gym.catalogue import contents_of
from nemotron_engines.estimate.training import estimate_training
from nemotron_engines.modeling.architecture import own_architecture, own_sources
from nemotron_engines.nemo_rl.settings import NeMoRLGRPOEngine
from nemotron_shared.engine.engine import run_engine
from nemotron_shared.engine.spec import Step
from nemotron_shared.step.step import run_program
from stages.rl import data_prep
from stages.rl.engines import ENGINES
from stages.rl.rewards import REWARDS
from stages.rl.schema import RLConfig, learns_from_answers_alone
from stages.rl.sizes import rl_problems

STEP = Step(
    __file__,
    __doc__,
    RLConfig,
    run_engine,
    engines=ENGINES,
    prepare=data_prep.STEP,
    check=rl_problems,
    sources=own_sources,
    contents=lambda config: {
        **own_architecture(config),
        **contents_of("engine.environments", getattr(config.engine, "environments", None)),
        **contents_of("engine", config.engine if isinstance(config.engine, NeMoRLGRPOEngine) else None),
    },
    chosen=lambda config: [REWARDS.module_of(reward.name) for reward in config.rewards if reward.path is None],
    estimate=estimate_training,
    reinforces=learns_from_answers_alone,
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
