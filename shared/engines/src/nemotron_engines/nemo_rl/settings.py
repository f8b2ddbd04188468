"""The engine section of NeMo-RL, for the sft and rl stages: settings that only NeMo-RL has."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nemotron_engines.nemo_rl.versions import load_bases
from nemotron_engines.overrides import foreign_code, unchecked
from nemotron_shared.config.schema import EngineSection, How


class NeMoRLEngine(EngineSection):
    """NeMo-RL, started as one driver on Ray, from its container or from a checkout."""

    unused: ClassVar[Mapping[str, str]] = {
        "model.architecture": "NeMo-RL starts from the model that run.model names",
        "checkpoint.keep_best": "NeMo-RL keeps the newest checkpoints",
        "checkpoint.publish_best": "NeMo-RL keeps the newest checkpoints",
        "logger.log_interval": "NeMo-RL prints every step",
        "logger.tensorboard": "NeMo-RL always writes TensorBoard files",
    }

    name: Literal["nemo_rl"]
    version: Literal["v0.7.0", "nano-v3"]
    """NeMo-RL version; the checkout must match it."""
    container: How[str | None]
    """Container image with this version, for the launcher and for messages. `null`: this environment."""
    checkout: How[str | None]
    """Folder of NeMo-RL's source. `null`: where `nemo_rl` is imported from, else `/opt/nemo-rl`."""
    runner: How[Literal["uv", "python"]]
    """`uv`: `uv run` in the checkout. `python`: this process's interpreter, with the checkout on its path."""
    base: str
    """NeMo-RL config that ours builds on, as a path in the checkout."""
    overrides: dict[str, Any]
    """Keys of NeMo-RL's config that our sections do not have, as a tree. On the command line:
    `++engine.overrides.policy.dtensor_cfg.cpu_offload=true`."""
    num_nodes: How[int] = Field(ge=1)
    """Nodes for training and generation. Judge models' nodes (`env.nemo_gym.num_gpu_nodes`) are extra."""
    gpus_per_node: How[int] = Field(ge=1)
    """GPUs per node."""
    max_total_sequence_length: int = Field(ge=8)
    """Tokens of a prompt plus its completion."""
    load_path: str | None
    """A `step_N` folder of an earlier run to continue from. This run's own checkpoints take precedence."""
    experimental: list[str]
    """Why a recipe may not work; such a recipe needs allow_experimental."""
    allow_experimental: How[bool]
    """Run it anyway."""
    allow_custom_plan: bool
    """Let `overrides` name a parallel plan, which is Python code, from outside the checkout."""
    stop_before_training: How[bool]
    """Do everything that needs no GPU (config, tokenizer, data), report the result, and stop."""

    @model_validator(mode="after")
    def known_to_nemo_rl(self) -> "NeMoRLEngine":
        """Require one of NeMo-RL's configs as the base, and no foreign code in `overrides`."""
        if self.base not in (bases := load_bases(self.version)):
            known = ", ".join(bases)
            text = f"NeMo-RL {self.version} has no config '{self.base}' in our table; known: {known}"
            raise PydanticCustomError("base", "{text}", {"text": text, "below": "base"})
        for problem in foreign_code(self.overrides):
            below = str(problem.key).removeprefix("engine.")
            text = f"{problem.message}\n  {problem.remedy}"
            raise PydanticCustomError("nemo_rl_key", "{text}", {"text": text, "below": below})
        return self

    @property
    def notes(self) -> list[str]:
        """A note on keys that were not checked."""
        return unchecked(self.overrides, "NeMo-RL")


class NeMoRLGRPOEngine(NeMoRLEngine):
    """NeMo-RL's GRPO."""

    unused: ClassVar[Mapping[str, str]] = {
        **NeMoRLEngine.unused,
        "dpo.preference_average_log_probs": "a section dpo is refused",
        "reward_modeling.center_rewards_coefficient": "a section reward_modeling is refused",
        "distillation.kl_type": "a section distillation is refused",
        "logger.completions": "NeMo-RL writes all completions to train_data_step*.jsonl in nemo_rl_logs",
    }

    environment: Literal["math", "nemo_gym", "base"]
    """`math`: NeMo-RL's verifier. `nemo_gym`: NeMo-Gym's servers. `base`: the environment and data in `engine.base`
    (`run.data: null`)."""
    servers: list[str]
    """Environments, as `nemotron env list` names them, instead of NeMo-Gym's servers in `engine.base`. `[]`: those."""
    train_rows: str | None
    """JSONL file of rows for the environment, instead of a data artifact (`run.data: null`)."""
    valid_rows: str | None
    """The same for validation. `null` with train_rows: no validation."""

    @model_validator(mode="after")
    def servers_are_asked(self) -> "NeMoRLGRPOEngine":
        """Require NeMo-Gym where its servers are named."""
        if self.servers and self.environment != "nemo_gym":
            text = f"these are NeMo-Gym's, but engine.environment is {self.environment}"
            text += "\n  set engine.environment=nemo_gym"
            raise PydanticCustomError("servers", "{text}", {"text": text, "below": "servers"})
        return self

    def own_files(self) -> tuple[str | None, ...]:
        """Files that are read besides the data artifact."""
        return (self.train_rows, self.valid_rows)


class NeMoRLSFTEngine(NeMoRLEngine):
    """NeMo-RL's fine-tuning, which packs conversations itself instead of reading our packed rows."""

    train_chats: str | None
    """JSONL file of OpenAI `messages`. `null`: the data set in `engine.base`."""
    valid_chats: str | None
    """The same for validation. `null` with train_chats: no validation."""

    def own_files(self) -> tuple[str | None, ...]:
        """Files that are read besides the data artifact."""
        return (self.train_chats, self.valid_chats)
