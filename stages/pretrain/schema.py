"""Every setting of the pretraining stage. Defaults are written in `config/default.yaml` only."""

from typing import Generic

from pydantic import Field

from nemotron_shared.config.schema import EngineT, TokenizerSection, TrainingDataSection
from nemotron_shared.config.training import PretrainTrain, SupervisedConfig
from stages.pretrain.engines import ENGINES


class PretrainData(TrainingDataSection):
    """How text becomes token shards."""

    synthetic_documents: int = Field(ge=1)
    """Documents that the synthetic data has."""
    text_field: str
    """Field that holds a row's text."""
    text_template: str | None
    r"""Text made of several fields, such as `"{question}\n{answer}"`; used instead of `text_field`."""
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
