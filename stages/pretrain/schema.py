"""Every setting of the pretraining stage. Defaults are written in `config/default.yaml` only."""

from typing import Generic, Literal

from pydantic import Field

from nemotron_shared.config.data import TokenizerSection, TrainingDataSection
from nemotron_shared.config.schema import EngineT
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from stages.pretrain.engines import ENGINES


class PretrainData(TrainingDataSection):
    """How text becomes token shards."""

    synthetic_documents: int = Field(ge=1)
    """Documents that the synthetic data has."""
    documents: Literal["auto", "whole", "blank_lines", "headings"]
    """What of a text file is one document: the `whole` file, what stands between `blank_lines`, or under one of a
    Markdown file's `headings`. `auto`: whole files where there are 20 or more, else headings or blank lines."""
    text_field: str
    """Field that holds a row's text."""
    text_template: str | None
    r"""Text made of several fields, such as `"{question}\n{answer}"`; used instead of `text_field`."""
    control_tokens: Literal["text", "allow", "reject"]
    """A control token's name inside a text: `text` encodes it as the text that it is, `allow` makes the token of it,
    `reject` leaves the row out. All are counted."""
    min_doc_chars: int | None = Field(ge=1)
    """Shorter documents, in characters, are rejected and counted. `null`: no limit."""
    max_doc_tokens: int | None = Field(ge=1)
    """Longer documents are cut there and counted. `null`: no limit."""
    merge: bool
    """One bin/idx pair for each data set and split, instead of one for each shard."""
    tokenizer: TokenizerSection


class PretrainConfig(SupervisedConfig[EngineT], Generic[EngineT]):
    """The whole configuration of the stage."""

    engines = ENGINES

    data_prep: PretrainData
    train: PretrainTrain
