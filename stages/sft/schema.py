"""Every setting of the fine-tuning stage. Defaults are written in `config/default.yaml` only."""

from typing import Generic, Literal

from pydantic import Field, field_validator

from nemotron_data.chat.formats import check_format
from nemotron_shared.config.data import TokenizerSection, TrainingDataSection
from nemotron_shared.config.schema import MOST_TOKENS, EngineT
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.system.errors import UserError
from stages.sft.engines import ENGINES


class SFTData(TrainingDataSection):
    """How chats become packed rows."""

    synthetic_chats: int = Field(ge=1)
    """Conversations that the synthetic data has."""
    format: str
    """How a row holds its conversation: `messages`, `sharegpt`, `alpaca`, `prompt_response`, `prompt_completion`,
    `question_answer`, `input_output`, `rollout`, or one that a package adds. `auto`: what its fields show, row by
    row."""
    control_tokens: Literal["text", "allow", "reject"]
    """A control token's name inside a message: `text` encodes it as the text that it is, `allow` makes the token of it,
    `reject` leaves the row out. All are counted."""
    messages_field: str
    """Field of OpenAI messages."""
    tools_field: str
    """Field of tool descriptions; a row may lack it."""
    prompt_field: str
    """Field of the user's words, in `prompt_response` rows."""
    response_field: str
    """Field of the assistant's words, in `prompt_response` rows."""
    conversations_field: str
    """Field of the turns, in `sharegpt` rows."""
    used_in_filter: str | None
    """Use only rows whose `used_in_field` names this, such as `nano_v3`; the others are counted. `null`: all rows."""
    used_in_field: str
    """Field with a list, or comma-separated text, of what a row is meant for."""
    chat_template: str | None
    """`nano3`, `plain`, the path of a Jinja file, or Jinja text; the model that learns gets it. `null`: the tokenizer's
    own template."""
    split_turns: Literal["auto", "never"]
    """`auto`: if the template hides the reasoning of earlier answers, or writes an empty thought before the last answer
    only, each question becomes a separate sequence. `never`: one sequence per conversation."""
    max_doc_tokens: int | None = Field(ge=2)
    """Longer sequences are cut to this length and counted, before `too_long` applies. `null`: no limit."""
    pack_size: int = Field(ge=8, le=MOST_TOKENS)
    """Tokens per packed row."""
    too_long: Literal["truncate", "reject"]
    """A sequence above `pack_size`: `truncate` cuts its end off, `reject` leaves it out. Both are counted."""
    algorithm: Literal["best_fit_decreasing", "first_fit_decreasing", "first_fit_shuffle", "concatenative"]
    """How sequences share rows: `best_fit_decreasing` (fewest rows; `first_fit_decreasing` is another name of it),
    `first_fit_shuffle` (lengths mixed), `concatenative` (order kept)."""
    parquet_compression: Literal["zstd", "snappy", "gzip", "none"]
    """`zstd`, `snappy`, `gzip` or `none`."""
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


class SFTConfig(SupervisedConfig[EngineT], Generic[EngineT]):
    """The whole configuration of the stage."""

    engines = ENGINES
    rows_are_packed = True

    data_prep: SFTData
