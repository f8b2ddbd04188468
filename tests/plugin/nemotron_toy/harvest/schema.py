"""Every setting of the stage. Defaults are written in `config/default.yaml` only."""

from typing import Generic

from pydantic import Field, field_validator

from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import EngineT, HasSettings, Section, StageConfig
from nemotron_shared.system.errors import UserError
from stages.rl.rewards import REWARDS

ENGINES: Registry[type[HasSettings]] = Registry(
    kind="engine", group="nemotron.engines.harvest", own={"openai": "nemotron_toy.harvest.engine:OpenAI"}
)


class HarvestSection(Section):
    """What is asked, and what is kept."""

    prompts: str | None
    """JSONL file with a question and the expected answer in each row. Required: `null` is an error."""
    question_field: str
    """Field of the question."""
    answer_field: str
    """Field of the expected answer."""
    answers: int = Field(ge=1)
    """Answers to each question."""
    max_tokens: int = Field(ge=1)
    """Longest answer, in tokens. One that is cut there is not kept."""
    temperature: float = Field(ge=0)
    """Sampling temperature."""
    reward: str
    """A reward of the stage rl, or of an installed package."""
    at_least: float
    """An answer is kept if its reward is not below this."""
    sft_config: str
    """Config of the stage sft by which the kept answers are packed: a name or a path."""
    sft_settings: list[str]
    """Overrides of that config, such as `data_prep.pack_size=128`."""

    @field_validator("reward")
    @classmethod
    def is_a_reward(cls, name: str) -> str:
        """In the table of rewards."""
        try:
            REWARDS.module_of(name)
        except UserError as error:
            raise ValueError(f"{error.message}; {error.remedy}") from error
        return name


class HarvestConfig(StageConfig[EngineT], Generic[EngineT]):
    """The whole configuration of the stage."""

    engines = ENGINES

    harvest: HarvestSection
