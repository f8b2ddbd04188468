"""Settings for environments of several turns, in RL and in evaluation."""

from typing import Literal

from pydantic import Field

from nemotron_shared.config.schema import Section


class EnvironmentsSection(Section):
    """Environments to use, and limits of an episode."""

    servers: list[str] = Field(min_length=1)
    """Environments to start, by name or folder (`nemotron env list`). They end with the run."""
    max_turns: int = Field(ge=1)
    """Maximum turns of the model in an episode; an agent's `max_steps` may be lower."""
    max_episode_tokens: int = Field(ge=1)
    """Maximum tokens after the prompt, the environment's included. An episode ends if less than a turn is left."""
    show_tools: bool
    """Pass the row's tools to the chat template. Otherwise a model only knows them from fine-tuning."""
    timeout_seconds: float = Field(gt=0)
    """Maximum time for an answer of an environment."""
    connections: int = Field(ge=1, le=256)
    """Maximum concurrent requests."""
    on_failure: Literal["stop", "mask"]
    """If an environment fails (no answer, a status of 500 or more, no JSON): `stop`, or `mask` the episode, which is
    counted and not trained on. A failure is never a reward."""

    def lacks_room(self, turn_tokens: int) -> str | None:
        """Why no episode can have a second turn, if turns may have so many tokens and there may be several."""
        if self.max_turns == 1 or self.max_episode_tokens > turn_tokens:
            return None
        return f"{self.max_episode_tokens} tokens of an episode leave no room for a second turn of up to {turn_tokens}"
