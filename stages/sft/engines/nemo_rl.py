"""Fine-tune with NeMo-RL, for models that its recipes cover: Llama 3.3 Nemotron Super 49B.

It packs conversations itself and reads none of our packed rows: `engine.train_chats` is a JSONL file of OpenAI
messages, or null for the data set that `engine.base` names.
"""

from pathlib import Path
from typing import Any

from nemotron_engines.nemo_rl.training import check_config, train_with_nemo_rl
from nemotron_engines.nemo_rl.training import render as nemo_rl_config
from nemotron_engines.nemo_rl.translate import Places, placeholders, run_places
from nemotron_engines.nemo_rl.versions import VERSIONS
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Task

ALGORITHM = "sft"


def check(config: Any) -> None:
    """What can be judged before any work; raises UserError."""
    if config.run.data is not None:
        raise UserError(
            f"run.data: NeMo-RL reads no packed rows, and run.data is {config.run.data}",
            "set run.data=null and engine.train_chats=chats.jsonl",
        )
    if ALGORITHM not in VERSIONS[config.engine.version].scripts:
        raise UserError(f"engine.version: {config.engine.version} is for reinforcement only", "engine.version=v0.7.0")
    if config.engine.valid_chats is not None and config.engine.train_chats is None:
        raise UserError("engine.valid_chats without engine.train_chats", "give both, or neither")
    check_config(config, ALGORITHM, places_without_run(config))


def render(config: Any, model: str | None) -> str:
    """NeMo-RL's config, for people."""
    return nemo_rl_config(config, ALGORITHM, places_without_run(config, model))


def places_without_run(config: Any, model: str | None = None) -> Places:
    """Names instead of paths, where no run has begun."""
    engine = config.engine
    return placeholders(model, train=engine.train_chats is not None, valid=engine.valid_chats is not None)


def train(task: Task) -> Outcome:
    """Fine-tune on conversations."""
    return train_with_nemo_rl(task, ALGORITHM, places(task), environment=ALGORITHM)


def places(task: Task) -> Places:
    """Model, conversations and folders of this run.

    Raises:
        UserError: there is no model, or a file of conversations is missing.
    """
    engine, run, base = task.config.engine, task.run, task.inputs["model"]
    if base is None:
        raise UserError("engine nemo_rl starts from a model, and there is none", "give run.model=PATH")
    files = {name: getattr(engine, name) for name in ("train_chats", "valid_chats")}
    paths = {name: Path(file).expanduser().resolve() for name, file in files.items() if file is not None}
    for name, path in paths.items():
        if not path.is_file():
            raise UserError(f"engine.{name}: there is no file {path}")
    return run_places(run, base.path, paths.get("train_chats"), paths.get("valid_chats"))
