"""Reinforce with NeMo-RL's GRPO on our rows, or on the data that its own config names."""

import json
from pathlib import Path
from typing import Any

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.nemo_rl.settings import NeMoRLGRPOEngine
from nemotron_engines.nemo_rl.training import train_with_nemo_rl
from nemotron_engines.nemo_rl.translate import Places, run_places
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.task import Outcome, Task
from stages.rl.schema import RLConfig

ALGORITHM = "grpo"
GRPOTask = Task[RLConfig[NeMoRLGRPOEngine]]


def train(task: GRPOTask) -> Outcome:
    """Follow what did better than its group, as NeMo-RL's environment judges it."""
    environment = task.config.engine.environment
    task.run.say(f"rewards come from NeMo-RL's environment '{environment}'; the section `rewards` is for engine trl")
    return train_with_nemo_rl(task, ALGORITHM, places(task), environment=environment)


def places(task: GRPOTask) -> Places:
    """Model, rows and folders of this run; raises UserError for a row that NeMo-RL could not use."""
    data = task.inputs["data"]
    train = valid = None
    if data is not None:
        train, valid = data.path / "train.jsonl", data.path / "val.jsonl"
        valid = valid if valid.is_file() else None
        require_rows([file for file in (train, valid) if file], task.config.engine.environment)
    return run_places(task.run, model_folder(task), train, valid)


def model_folder(task: GRPOTask) -> Path:
    """The folder of the instruct model, or of random weights where the config allows it."""
    config, base = task.config, task.inputs["model"]
    if base is not None:
        return base.path.resolve()
    folder = task.run.directory.resolve() / "random_model"
    provide_tokenizer(config.model.tokenizer, folder)
    if not config.engine.stop_before_training and not (folder / "config.json").is_file():
        from nemotron_engines.modeling.build import save_random_model

        save_random_model(config.model, folder, config.run.seed, folder)
    return folder


def require_rows(files: list[Path], environment: str) -> None:
    """Refuse rows that NeMo-RL would drop parts of, or stumble over hours later.

    Raises:
        UserError: naming the file and the line.
    """
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                wrong = row_fault(_parsed(file, number, line), environment)
                if wrong:
                    remedy = "engine.environment=nemo_gym sends whole rows to NeMo-Gym's servers"
                    raise UserError(f"{file}:{number}: {wrong}", remedy if environment == "math" else None)


def row_fault(row: dict[str, Any], environment: str) -> str | None:
    """What an environment cannot use in a row."""
    turns = (row.get("responses_create_params") or {}).get("input")
    if environment == "nemo_gym":
        agent = row.get("agent_ref") or {}
        whole = turns and agent.get("type") and agent.get("name")
        return None if whole else "no responses_create_params.input, or agent_ref without type and name"
    if not isinstance(row.get("question"), str) or not isinstance(row.get("expected_answer"), str):
        return "no question or no expected_answer, which the math environment reads"
    alone = [{"role": "user", "content": row["question"]}]
    if turns is not None and turns != alone:
        return "the prompt has more turns than the question, and the math environment would leave them out"
    return None


def _parsed(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{number}: damaged row ({error})", "prepare the data again with --force") from error
    if not isinstance(row, dict):
        raise UserError(f"{file}:{number}: damaged row (no object)", "prepare the data again with --force")
    return row
