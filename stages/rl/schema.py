"""Every setting of the reinforcement stage. Defaults are written in `config/default.yaml` only."""

import re
from typing import Generic, Literal

from pydantic import Field, field_validator, model_validator

from nemotron_shared.config.data import TrainingDataSection
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.config.schema import EngineT, Extra, LocalEngine, Section
from nemotron_shared.config.training import GRPOConfig
from stages.rl.engines import ENGINES
from stages.rl.rewards import REWARDS


class Holdout(Section):
    """The last rows of the input as validation; at most one of the two is set."""

    rows: int | None = Field(ge=1)
    """Validate on the last so many rows instead of by hash."""
    fraction: float | None = Field(gt=0, lt=1)
    """Validate on this share of the rows, the last ones. At most one of the two is set."""

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
    """Where DAPO-Math-17k is: a folder, a Parquet file or `hf://...`; see [Placeholders](#placeholders). `null`: rows
    that need it are bad rows."""
    skywork: str | None
    """The same for Skywork-OR1-RL-Data."""


class RLData(TrainingDataSection):
    """How questions become prompts with an expected answer."""

    synthetic_problems: int = Field(ge=1)
    """Problems that the synthetic data has."""
    question_field: str
    """Field of the question."""
    answer_field: str
    """Field of the expected answer."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer inside the field. GSM8K: `#### (.+)`. `null`: the whole
    field."""
    system_prompt: str | None
    """System message before each question. `null`: none."""
    agent: str
    """Name of the NeMo-Gym agent that verifies the answers of rows without an `agent_ref`."""
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
    exact_sampling: bool
    """Sample and train by one computation, whose log-probabilities are the same bits: NemotronH in float32 on a CPU
    with `run.threads=1`. Elsewhere `generate` of transformers samples, and one line says why."""
    environments: Extra[EnvironmentsSection | None]
    """What answers the model over several turns and rewards it: [Environments](../../docs/environments.md). `null`: one
    answer to each prompt."""


class Reward(Section):
    """One reward function and its weight."""

    name: str
    """A name in the table of `rewards.py`, or one that an installed package brings."""
    weight: float
    """Its share in the sum."""

    @model_validator(mode="after")
    def exists(self) -> "Reward":
        """The name must be in the table of `rewards.py`."""
        if self.name not in REWARDS.places():
            raise ValueError(str(REWARDS.unknown(self.name)))
        return self


class RLConfig(GRPOConfig[EngineT], Generic[EngineT]):
    """The whole configuration of the stage."""

    engines = ENGINES

    data_prep: RLData
    rewards: list[Reward] = Field(min_length=1)
    """Reward functions with weights; see [Rewards](#rewards)."""

    @field_validator("rewards")
    @classmethod
    def teach(cls, rewards: list[Reward]) -> list[Reward]:
        """Each reward is there once, since its figures have its name, and one of them counts."""
        names = [reward.name for reward in rewards]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' is named twice: name it once, with the weight of both")
        if not any(reward.weight for reward in rewards):
            raise ValueError("all weights are 0, which teaches nothing: give one of them another weight")
        return rewards
