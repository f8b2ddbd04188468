"""Every setting of the pretraining stage. Defaults are written in `config/default.yaml` only."""

from typing import Annotated

from pydantic import Field

from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
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


class PretrainData(PreparedSection):
    """How text becomes token shards."""

    synthetic_documents: int = Field(ge=1)
    """Documents that the synthetic data has."""
    text_field: str
    """Field that holds a row's text; a blend may name another per data set."""
    text_template: str | None
    """Text made of several fields, such as `"{question}\\n{answer}"`; used instead of `text_field`."""
    min_doc_chars: int | None = Field(ge=1)
    """Shorter documents are rejected and counted."""
    max_doc_tokens: int | None = Field(ge=1)
    """Longer documents are cut there and counted."""
    merge: bool
    """One bin/idx pair for each data set and split, instead of one for each shard."""
    tokenizer: TokenizerSection


class PretrainTrain(TrainSection):
    """How much to train, and on rows of what length."""

    seq_length: int = Field(ge=8)
    """Tokens per row."""


class PretrainConfig(Section):
    """The whole configuration of the stage."""

    run: RunSection
    data_prep: PretrainData
    engine: Annotated[TransformersEngine | MegatronBridgeEngine | AutomodelEngine, Field(discriminator="name")]
    model: ModelSection
    train: PretrainTrain
    optimizer: OptimizerSection
    scheduler: SchedulerSection
    checkpoint: CheckpointSection
    logger: LoggerSection
