"""Every setting of the fine-tuning stage. Defaults are written in `config/default.yaml` only."""

from typing import Literal

from pydantic import Field

from nemotron_shared.config.schema import (
    CheckpointSection,
    LoggerSection,
    ModelSection,
    OptimizerSection,
    PreparedSection,
    RunSection,
    SchedulerSection,
    Section,
    TokenizerSection,
    TrainSection,
    TransformersEngine,
)


class SFTData(PreparedSection):
    """How chats become packed rows."""

    world_chats: int = Field(ge=1)
    """Conversations that the built-in world holds."""
    format: Literal["messages", "prompt_response", "sharegpt"]
    """How a row holds its conversation."""
    messages_field: str
    """Field of OpenAI messages."""
    tools_field: str
    """Field of tool descriptions; a row may lack it."""
    prompt_field: str
    """Field of the user's words, in prompt_response rows."""
    response_field: str
    """Field of the assistant's words, in prompt_response rows."""
    conversations_field: str
    """Field of the turns, in sharegpt rows."""
    chat_template: str | None
    """A Jinja file. null: the tokenizer's own template."""
    pack_size: int = Field(ge=8)
    """Tokens per packed row; a longer conversation is handled by `too_long`."""
    too_long: Literal["truncate", "reject"]
    """A conversation above pack_size: cut its end off, or reject it. Both are counted."""
    algorithm: Literal["best_fit_decreasing", "first_fit_shuffle", "concatenative"]
    """How conversations are put together into rows."""
    tokenizer: TokenizerSection


class SFTConfig(Section):
    """The whole configuration of the stage."""

    run: RunSection
    data_prep: SFTData
    engine: TransformersEngine
    model: ModelSection
    train: TrainSection
    optimizer: OptimizerSection
    scheduler: SchedulerSection
    checkpoint: CheckpointSection
    logger: LoggerSection
