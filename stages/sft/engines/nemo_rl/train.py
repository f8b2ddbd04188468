"""Fine-tune with NeMo-RL on the files of conversations that the config names."""

from pathlib import Path

from nemotron_engines.nemo_rl.settings import NeMoRLSFTEngine
from nemotron_engines.nemo_rl.training import train_with_nemo_rl
from nemotron_engines.nemo_rl.translate import Places, run_places
from nemotron_shared.engine.spec import Outcome, Task
from stages.sft.schema import SFTConfig

ALGORITHM = "sft"


def train(task: Task[SFTConfig[NeMoRLSFTEngine]]) -> Outcome:
    """Fine-tune on conversations."""
    return train_with_nemo_rl(task, ALGORITHM, places(task), environment=ALGORITHM)


def places(task: Task[SFTConfig[NeMoRLSFTEngine]]) -> Places:
    """Model, conversations and folders of this run."""
    engine = task.config.engine
    files = (engine.train_chats, engine.valid_chats)
    train, valid = (None if file is None else Path(file).expanduser().resolve() for file in files)
    return run_places(task.run, task.input("model").path, train, valid)
