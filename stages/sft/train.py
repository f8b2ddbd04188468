"""Fine-tune: packed conversations and a base model in, instruct model out.

torchrun stages/sft/train.py -c tiny
python stages/sft/train.py run.model=/models/nemotron train.train_iters=500
"""

import sys
from functools import partial
from pathlib import Path

from nemotron_data.sources.rows import own_files
from nemotron_engines.modeling.architecture import load_architecture, own_file
from nemotron_shared.runtime.engine import files_of, judge, load_engine, preview
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.sft import data_prep
from stages.sft.schema import SFTConfig

ENGINES = {
    "transformers": "stages.sft.engines.transformers",
    "megatron_bridge": "stages.sft.engines.megatron_bridge",
    "automodel": "stages.sft.engines.automodel",
    "nemo_rl": "stages.sft.engines.nemo_rl",
}


def train(task: Task) -> Outcome:
    """Hand the work to the engine that the config names."""
    return load_engine(ENGINES, task.config.engine.name).train(task)


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
    sources=lambda config: own_files(own_file(config.model.architecture), *files_of(config.engine)),
    contents=lambda config: {"model.architecture": load_architecture(config.model.architecture, {})},
    engines=ENGINES,
    work=train,
    check=partial(judge, ENGINES),
    render=partial(preview, ENGINES),
)

if __name__ == "__main__":
    sys.exit(STEP.main())
