"""Every setting of the reinforcement stage. Defaults are written in `config/default.yaml` only."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from nemotron_engines.nemo_rl.settings import NeMoRLGRPOEngine
from nemotron_shared.config.schema import (
    CheckpointSection,
    How,
    LocalEngine,
    LoggerSection,
    OptimizerSection,
    PreparedSection,
    RandomModelSection,
    RunSection,
    SchedulerSection,
    Section,
)
from stages.rl.rewards import REWARDS


class Holdout(Section):
    """The last rows of the input as validation; at most one of the two is set."""

    rows: int | None = Field(ge=1)
    """So many rows."""
    fraction: float | None = Field(gt=0, lt=1)
    """This share of the rows, and at least one."""

    @property
    def wanted(self) -> bool:
        """Whether rows are held out by their place; if not, `split` divides them by hash."""
        return self.rows is not None or self.fraction is not None

    @model_validator(mode="after")
    def one_at_most(self) -> "Holdout":
        """A count and a share of the same rows contradict each other."""
        if self.rows is not None and self.fraction is not None:
            raise ValueError("data_prep.holdout: give rows or fraction, and null for the other")
        return self


class PlaceholderSources(Section):
    """Where the source sets of placeholder rows are: a folder, a Parquet file, or `hf://org/name`."""

    dapo: str | None
    skywork: str | None


class RLData(PreparedSection):
    """How questions become prompts with an expected answer."""

    synthetic_problems: int = Field(ge=1)
    """Problems that the synthetic data has."""
    question_field: str
    """Field of the question."""
    answer_field: str
    """Field of the expected answer."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer inside the field; GSM8K: `#### (.+)`."""
    system_prompt: str | None
    """System message before each question."""
    agent: str
    """Name of the NeMo-Gym agent that would verify the answer; written to the `agent_ref` of rows without one."""
    placeholder_sources: PlaceholderSources
    holdout: Holdout

    @field_validator("answer_pattern")
    @classmethod
    def compiles(cls, pattern: str | None) -> str | None:
        """A pattern that is none would otherwise stop every worker at its first row."""
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class TRLEngine(LocalEngine):
    """TRL's GRPOTrainer over transformers' model classes."""

    name: Literal["trl"]


class RLTrain(Section):
    """How much to train. A step's batch is num_prompts_per_step x num_generations_per_prompt completions."""

    train_iters: int = Field(ge=1)
    """Optimizer steps."""
    micro_batch_size: How[int | None] = Field(ge=1)
    """Completions per forward pass and process; the rest is gradient accumulation. null: all in one pass."""
    eval_interval: How[int] = Field(ge=1)
    """Steps between validations."""
    eval_rows: How[int] = Field(ge=1)
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
    engine: Annotated[TRLEngine | NeMoRLGRPOEngine, Field(discriminator="name")]
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
