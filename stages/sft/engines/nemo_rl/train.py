"""Fine-tune with NeMo-RL on the files of conversations that the config names."""

from pathlib import Path

from nemotron_engines.nemo_rl.settings import NeMoRLSFTEngine
from nemotron_engines.nemo_rl.training import train_with_nemo_rl
from nemotron_engines.nemo_rl.translate import Places, run_places
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.task import Outcome, Task
from stages.sft.schema import SFTConfig

ALGORITHM = "sft"


def train(task: Task[SFTConfig[NeMoRLSFTEngine]]) -> Outcome:
    """Fine-tune on conversations."""
    return train_with_nemo_rl(task, ALGORITHM, places(task), environment=ALGORITHM)


def places(task: Task[SFTConfig[NeMoRLSFTEngine]]) -> Places:
    """Model, conversations and folders of this run.

    Raises:
        UserError: there is no model, or a file of conversations is missing.
    """
    engine, run, base = task.config.engine, task.run, task.inputs["model"]
    if base is None:
        raise UserError("engine nemo_rl starts from a model, and there is none", "give run.model=PATH")
    files = {"train_chats": engine.train_chats, "valid_chats": engine.valid_chats}
    paths = {name: Path(file).expanduser().resolve() for name, file in files.items() if file is not None}
    for name, path in paths.items():
        if not path.is_file():
            raise UserError(f"engine.{name}: there is no file {path}")
    return run_places(run, base.path, paths.get("train_chats"), paths.get("valid_chats"))
