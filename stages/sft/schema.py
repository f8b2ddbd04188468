"""Every setting of the fine-tuning stage. Defaults are written in `config/default.yaml` only."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from nemotron_data.chat.formats import check_format
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.nemo_rl.settings import NeMoRLSFTEngine
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
from nemotron_shared.errors import UserError


class SFTData(PreparedSection):
    """How chats become packed rows."""

    synthetic_chats: int = Field(ge=1)
    """Conversations that the synthetic data has."""
    format: str
    """How a row holds its conversation: `messages`, `prompt_response`, `sharegpt`, or one that a package adds."""
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
    used_in_filter: str | None
    """Use only rows whose `used_in_field` names this; the others are counted. null: all rows."""
    used_in_field: str
    """Field with a list, or comma-separated text, of what a row is meant for."""
    chat_template: str | None
    """The name of a shipped template, a Jinja file, or Jinja text. null: the tokenizer's own template."""
    split_turns: Literal["auto", "never"]
    """auto: where a template hides the reasoning of earlier answers, each question makes a sequence of its own."""
    max_doc_tokens: int | None = Field(ge=2)
    """Cut longer sequences here, before `too_long` is asked. null: no limit."""
    pack_size: int = Field(ge=8)
    """Tokens per packed row; a longer sequence is handled by `too_long`."""
    too_long: Literal["truncate", "reject"]
    """A sequence above pack_size: cut its end off, or reject it. Both are counted."""
    algorithm: Literal["best_fit_decreasing", "first_fit_decreasing", "first_fit_shuffle", "concatenative"]
    """How sequences are put together into rows."""
    parquet_compression: Literal["zstd", "snappy", "gzip", "none"]
    """Compression of the packed files."""
    parquet_row_group_size: int = Field(ge=1)
    """Packed rows per row group."""
    tokenizer: TokenizerSection

    @field_validator("format")
    @classmethod
    def is_a_format(cls, name: str) -> str:
        """In the table of chat formats, or offered by an installed package."""
        try:
            return check_format(name)
        except UserError as error:
            raise ValueError(f"{error.message}; {error.remedy}") from error


class SFTConfig(Section):
    """The whole configuration of the stage."""

    run: RunSection
    data_prep: SFTData
    engine: Annotated[
        TransformersEngine | MegatronBridgeEngine | AutomodelEngine | NeMoRLSFTEngine, Field(discriminator="name")
    ]
    model: ModelSection
    train: TrainSection
    optimizer: OptimizerSection
    scheduler: SchedulerSection
    checkpoint: CheckpointSection
    logger: LoggerSection
