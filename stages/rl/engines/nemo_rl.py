"""Reinforce with NeMo-RL's GRPO: rollouts by vLLM, training by Megatron or DTensor, all of it on Ray.

Nothing of NeMo-RL, torch or Ray is imported here; the checkout's own program is started with a config that we write.
"""

from pathlib import Path
from typing import Any

from nemotron_data.formats.rl_rows import RLRow, Turn, read_rl_rows, validate
from nemotron_data.rejects import Refused
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.nemo_rl.training import check_config, train_with_nemo_rl
from nemotron_engines.nemo_rl.training import render as nemo_rl_config
from nemotron_engines.nemo_rl.translate import Places, placeholders, run_places
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Task

ALGORITHM = "grpo"


def check(config: Any) -> None:
    """What can be judged before any work; raises UserError."""
    own_data = config.engine.environment == "base"
    if own_data and config.run.data is not None:
        raise UserError(
            f"engine.environment: base takes the data set that engine.base names, and run.data is {config.run.data}",
            "set run.data=null, or engine.environment=math or nemo_gym",
        )
    if not own_data and config.run.data is None:
        raise UserError("run.data: null, but engine.environment needs our rows", "name a data artifact in run.data")
    check_config(config, ALGORITHM, places_without_run(config))


def render(config: Any, model: str | None) -> str:
    """NeMo-RL's config, for people."""
    return nemo_rl_config(config, ALGORITHM, places_without_run(config, model))


def places_without_run(config: Any, model: str | None = None) -> Places:
    """Names instead of paths, where no run has begun."""
    ours = config.engine.environment != "base"
    return placeholders(model, train=ours, valid=ours)


def train(task: Task) -> Outcome:
    """Follow what did better than its group, as NeMo-RL's environment judges it."""
    environment = task.config.engine.environment
    task.run.say(f"rewards come from NeMo-RL's environment '{environment}'; the section `rewards` is for engine trl")
    return train_with_nemo_rl(task, ALGORITHM, places(task), environment=environment)


def places(task: Task) -> Places:
    """Model, rows and folders of this run; raises UserError for a row that NeMo-RL could not use."""
    data = task.inputs["data"]
    train = valid = None
    if data is not None:
        train, valid = data.path / "train.jsonl", data.path / "val.jsonl"
        valid = valid if valid.is_file() else None
        require_rows([file for file in (train, valid) if file], task.config.engine.environment)
    return run_places(task.run, model_folder(task), train, valid)


def model_folder(task: Task) -> Path:
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
        for row in read_rl_rows(file):  # what each environment needs of a row differs
            if wrong := row_fault(row, environment):
                remedy = "engine.environment=nemo_gym sends whole rows to NeMo-Gym's servers"
                raise UserError(f"{row.place}: {wrong}", remedy if environment == "math" else None)


def row_fault(row: RLRow, environment: str) -> str | None:
    """What an environment cannot use in a row."""
    if environment == "nemo_gym":
        try:
            validate(row.value)
        except Refused as refused:
            return str(refused)
        return None
    question, answer = row.value.get("question"), row.value.get("expected_answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        return "no question or no expected_answer, which the math environment reads"
    if row.prompt and row.prompt != (Turn("user", question),):
        return "the prompt has more turns than the question, and the math environment would leave them out"
    return None
