"""NeMo-RL's fine-tuning, for models that its recipes cover: Llama 3.3 Nemotron Super 49B.

It packs conversations itself and reads none of our packed rows: `engine.train_chats` is a JSONL file of OpenAI
messages, or null for the data set that `engine.base` names.
"""

from collections.abc import Iterator
from dataclasses import replace

from nemotron_engines.checks import no_chats, too_few_rows
from nemotron_engines.nemo_rl.needs import check_config
from nemotron_engines.nemo_rl.needs import needs as nemo_rl_needs
from nemotron_engines.nemo_rl.needs import render as nemo_rl_config
from nemotron_engines.nemo_rl.settings import NeMoRLSFTEngine
from nemotron_engines.nemo_rl.translate import Places, placeholders
from nemotron_engines.nemo_rl.versions import VERSIONS
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem
from stages.sft.schema import SFTConfig

Config = SFTConfig[NeMoRLSFTEngine]
ALGORITHM = "sft"


class NeMoRL(Engine[Config]):
    """NeMo-RL's fine-tuning, started as one driver."""

    settings = NeMoRLSFTEngine
    tracks_itself = ("wandb", "mlflow")

    def check(self, config: Config, inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Data and version first; then what NeMo-RL would be told."""
        engine = config.engine
        if config.run.data is not None:
            yield problem(
                f"run.data: NeMo-RL reads no packed rows, and run.data is {config.run.data}",
                "set run.data=null and engine.train_chats=chats.jsonl",
            )
        elif ALGORITHM not in VERSIONS[engine.version].scripts:
            yield problem(f"engine.version: {engine.version} is for reinforcement only", "engine.version=v0.7.0")
        elif engine.valid_chats is not None and engine.train_chats is None:
            yield problem("engine.valid_chats without engine.train_chats", "give both, or neither")
        else:
            check_config(config, ALGORITHM, places_without_run(config))

    def needs(self, config: Config, inputs: Inputs, machine: Machine) -> Needs:
        """The user's conversations, a model, a checkout of the right version, and GPUs."""
        chats = {"engine.train_chats": config.engine.train_chats, "engine.valid_chats": config.engine.valid_chats}
        own = [*no_chats(chats)] if machine.sees_files else []
        if machine.sees_files:
            own += too_few_rows("engine.train_chats", config.engine.train_chats, config.train.global_batch_size)
        if inputs.get("model") is None and (config.run.model is None or config.run.missing_model == "random"):
            own.append(problem("engine nemo_rl needs a model to start from", "give run.model=FOLDER"))
        theirs = nemo_rl_needs(config, inputs, machine, ALGORITHM, places_without_run(config))
        return replace(theirs, others=(*own, *theirs.others))

    def render(self, config: Config, model: str | None) -> str:
        """NeMo-RL's config, for people."""
        return nemo_rl_config(config, ALGORITHM, places_without_run(config, model))

    def run(self, task: Task[Config]) -> Outcome:
        """Fine-tune on conversations."""
        from stages.sft.engines.nemo_rl.train import train

        return train(task)


def places_without_run(config: Config, model: str | None = None) -> Places:
    """Names instead of paths, where no run has begun."""
    engine = config.engine
    return placeholders(model, train=engine.train_chats is not None, valid=engine.valid_chats is not None)
