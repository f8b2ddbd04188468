"""Every setting of the reinforcement stage. Defaults are written in `config/default.yaml` only."""

from typing import Literal

from pydantic import Field, model_validator

from nemotron_shared.config.schema import (
    CheckpointSection,
    LocalEngine,
    LoggerSection,
    OptimizerSection,
    RandomModelSection,
    RunSection,
    SchedulerSection,
    Section,
    SourceSection,
)
from stages.rl.rewards import REWARDS


class RLData(SourceSection):
    """How questions become prompts with an expected answer."""

    world_problems: int = Field(ge=1)
    """Problems that the built-in world poses."""
    question_field: str
    """Field of the question."""
    answer_field: str
    """Field of the expected answer."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer inside the field; GSM8K: `#### (.+)`."""
    system_prompt: str | None
    """System message before each question."""
    agent: str
    """Name of the NeMo-Gym agent that would verify the answer; written to each row's `agent_ref`."""


class TRLEngine(LocalEngine):
    """TRL's GRPOTrainer over transformers' model classes."""

    name: Literal["trl"]


class RLTrain(Section):
    """How much to train. A step's batch is num_prompts_per_step x num_generations_per_prompt completions."""

    train_iters: int = Field(ge=1)
    """Optimizer steps."""
    micro_batch_size: int | None = Field(ge=1)
    """Completions per forward pass and process; the rest is gradient accumulation. null: all in one pass."""
    eval_interval: int = Field(ge=1)
    """Steps between validations."""
    eval_rows: int = Field(ge=1)
    """Prompts per validation."""


class GRPOSection(Section):
    """Group relative policy optimisation."""

    num_prompts_per_step: int = Field(ge=1)
    num_generations_per_prompt: int = Field(ge=2)
    """Completions that are compared with each other."""
    max_new_tokens: int = Field(ge=1)
    """Longest completion."""
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    reference_policy_kl_penalty: float = Field(ge=0)
    """Weight of the distance to the starting model; 0 keeps no reference model in memory."""
    ratio_clip_min: float = Field(gt=0)
    ratio_clip_max: float = Field(gt=0)
    normalize_rewards: bool
    """Divide advantages by the standard deviation of their group."""
    overlong_filtering: bool
    """Leave completions that were cut at max_new_tokens out of the loss."""


class Reward(Section):
    """One reward function and its weight."""

    name: str
    weight: float

    @model_validator(mode="after")
    def exists(self) -> "Reward":
        """The name must be in the table of `rewards.py`."""
        if self.name not in REWARDS:
            raise ValueError(f"no reward named '{self.name}'; there are: {', '.join(REWARDS)}")
        return self


class RLConfig(Section):
    """The whole configuration of the stage."""

    run: RunSection
    data_prep: RLData
    engine: TRLEngine
    model: RandomModelSection
    train: RLTrain
    grpo: GRPOSection
    rewards: list[Reward] = Field(min_length=1)
    optimizer: OptimizerSection
    scheduler: SchedulerSection
    checkpoint: CheckpointSection
    logger: LoggerSection

    @model_validator(mode="after")
    def divisible(self) -> "RLConfig":
        """A step's completions must be made of whole micro batches, and those of whole groups or parts of one."""
        completions = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        if self.train.micro_batch_size and completions % self.train.micro_batch_size:
            raise ValueError(
                f"{completions} completions per step (num_prompts_per_step x num_generations_per_prompt) are not a "
                f"multiple of train.micro_batch_size {self.train.micro_batch_size}; change one of them"
            )
        return self
