"""Train with NeMo-RL's GRPO on our rows, or on the data set in its own config."""

from pathlib import Path

from nemotron_data.gym.catalogue import config_for_runner, find_environment
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.nemo_rl.settings import NeMoRLGRPOEngine
from nemotron_engines.nemo_rl.training import train_with_nemo_rl
from nemotron_engines.nemo_rl.translate import Places, run_places
from nemotron_shared.engine.spec import Outcome, Task
from stages.rl.engines.nemo_rl.rows import require_rows
from stages.rl.schema import RLConfig

ALGORITHM = "grpo"
GRPOTask = Task[RLConfig[NeMoRLGRPOEngine]]


def train(task: GRPOTask) -> Outcome:
    """Train with GRPO, on the rewards of NeMo-RL's environment."""
    environment = task.config.engine.environment
    task.run.say(f"rewards come from NeMo-RL's environment '{environment}'; the section `rewards` is for engine trl")
    return train_with_nemo_rl(task, ALGORITHM, places(task), environment=environment)


def places(task: GRPOTask) -> Places:
    """Model, rows and folders of this run; raises UserError for a row that NeMo-RL cannot use."""
    data, engine = task.inputs["data"], task.config.engine
    train = Path(engine.train_rows) if engine.train_rows else None
    valid = Path(engine.valid_rows) if engine.valid_rows else None
    if data is not None:
        train, valid = data.path / "train.jsonl", data.path / "val.jsonl"
        valid = valid if valid.is_file() else None
    unused = require_rows([file for file in (train, valid) if file], engine.environment, task.config.grpo)
    if unused:
        task.run.say(f"row parameters that the math environment ignores: {unused}")
    into = task.run.directory.resolve() / "environments"
    environments = [config_for_runner(find_environment(name), into) for name in engine.servers]
    return run_places(task.run, model_folder(task), train, valid, environments)


def model_folder(task: GRPOTask) -> Path:
    """Folder of the instruct model, or of random weights if the config allows them."""
    config, base = task.config, task.inputs["model"]
    if base is not None:
        return base.path.resolve()
    folder = task.run.directory.resolve() / "random_model"
    provide_tokenizer(config.model.tokenizer, folder)
    if not config.engine.stop_before_training and not (folder / "config.json").is_file():
        from nemotron_engines.modeling.build import save_random_model

        save_random_model(config.model, folder, config.run.seed, folder)
    return folder
