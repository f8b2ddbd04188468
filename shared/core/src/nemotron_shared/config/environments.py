"""Settings of the environments that answer a model over several turns; of reinforcement and of evaluation."""

from typing import Literal

from pydantic import Field

from nemotron_shared.config.schema import Section


class EnvironmentsSection(Section):
    """Which environments answer, and how long an episode may be."""

    servers: list[str] = Field(min_length=1)
    """Environments to start, by name or folder (`nemotron env list`); they end with the run."""
    max_turns: int = Field(ge=1)
    """Answers of the model in an episode, at most; the `max_steps` of an agent may be fewer."""
    max_episode_tokens: int = Field(ge=1)
    """Tokens behind the prompt, the environment's included. An episode ends where less than one turn is left."""
    show_tools: bool
    """Give the chat template the row's tools. Without, a model knows them from fine-tuning alone."""
    timeout_seconds: float = Field(gt=0)
    """How long an environment may take to answer."""
    connections: int = Field(ge=1, le=256)
    """Requests at once."""
    on_failure: Literal["stop", "mask"]
    """When an environment fails (no answer, a status of 500 or more, no JSON): `stop`, or `mask` the episode. That then
    teaches nothing, and is counted. It is never a reward."""
