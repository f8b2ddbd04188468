"""Fine-tune: packed conversations and a base model in, instruct model out.

torchrun stages/sft/train.py -c tiny
python stages/sft/train.py run.model=/models/nemotron train.train_iters=500
"""

import sys
from pathlib import Path

from nemotron_shared.data.rows import own_files
from nemotron_shared.modeling.architecture import own_file
from nemotron_shared.runtime.engine import load_engine
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.sft import data_prep
from stages.sft.schema import SFTConfig

ENGINES = {
    "transformers": "stages.sft.engines.transformers",
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
    sources=lambda config: own_files(own_file(config.model.architecture)),
    work=train,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
