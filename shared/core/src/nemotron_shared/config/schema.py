"""Sections that every stage's schema is made of. Names follow Megatron-Bridge where it has one.

A field has no default: `config/default.yaml` is the one place where defaults are written down.
"""

from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeVar

from nemotron_shared.config.registry import Registry

HOW = "how"
Value = TypeVar("Value")
How = Annotated[Value, HOW]
"""A setting of how the work is done and not of what comes out: it may differ between two attempts at one result."""


class Section(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def how_keys(cls) -> frozenset[str]:
        """The settings of this section that are marked as `How`."""
        return frozenset(name for name, field in cls.model_fields.items() if HOW in field.metadata)


class RunSection(Section):
    """What this run reads, where it writes, and how it starts."""

    family: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Model family; the first part of artifact names (`super3-sft-model`)."""
    home: How[str | None]
    """Folder of the artifact store. null: $NEMOTRON_HOME, else `.nemotron`."""
    data: How[str | None]
    """Data artifact to read, such as `super3-sft-data:latest`."""
    model: How[str | None]
    """Model artifact to start from, or the path of a Hugging Face folder."""
    missing_data: How[Literal["error", "prepare"]]
    """When `data` does not exist: stop, or run data preparation first."""
    missing_model: How[Literal["error", "random"]]
    """When `model` does not exist: stop, or start from random weights."""
    seed: int = Field(ge=0)
    """Seed of weights, data order and sampling."""
    force: How[bool]
    """Redo the work even where a finished result exists."""
    on_change: How[Literal["continue", "restart", "refuse"]]
    """When an unfinished run is found and settings of how, or code, have changed since: go on, begin anew, or stop."""
    threads: How[int | None] = Field(ge=1)
    """CPU threads per process. null: as many as torch likes."""
    nproc_per_node: How[int] = Field(ge=1)
    """Processes that the `nemotron` command starts; torchrun sets its own."""


class TokenizerSection(Section):
    """Which tokenizer turns text into ids."""

    model: str | None
    """`tiny` (made locally), or the path of a Hugging Face tokenizer folder."""
    add_bos: bool
    """Begin each document with the beginning-of-text id."""
    add_eos: bool
    """End each document with the end-of-text id."""
    backend: How[Literal["auto", "gigatoken", "fastokens", "tokenizers"]]
    """What encodes. `auto`: the fastest that gives exactly the ids of `tokenizers` on a sample of the data."""


class EngineSection(Section):
    """What all engines have in common: which one it is."""

    extendable: ClassVar[bool] = False
    """Whether a longer training can go on from the last state of a shorter one."""

    name: str
    """Name of the engine; `engine=NAME` brings its whole block."""

    def own_files(self) -> tuple[str | None, ...]:
        """Files that the engine reads besides the artifacts, and that the result depends on."""
        return ()


class HasSettings(Protocol):
    """What a schema asks of an engine: the class of its section."""

    settings: ClassVar[type[EngineSection]]


EngineT = TypeVar("EngineT", bound=EngineSection, default=EngineSection, covariant=True)


class StageConfig(Section, Generic[EngineT]):
    """The whole configuration of a stage, and of its engine: `SFTConfig[AutomodelEngine]` for who knows which it is."""

    engines: ClassVar[Registry[type[HasSettings]]]
    """The engines of the stage. The chosen one brings the class of its section along."""

    run: RunSection
    engine: SerializeAsAny[EngineT]

    @classmethod
    def engine_class(cls, values: object) -> type[EngineSection] | None:
        """The class of an engine's section; None where its values name no engine of this stage."""
        name = values.get("name") if isinstance(values, dict) else None
        return cls.engines.load(name).settings if name in cls.engines.places() else None

    @field_validator("engine", mode="plain")
    @classmethod
    def of_its_own_class(cls, values: object) -> EngineSection:
        """Validate the section by the class that its engine declares."""
        if isinstance(values, EngineSection):
            return values
        section = cls.engine_class(values)
        if section is None and isinstance(values, dict) and "name" in values:
            text = str(cls.engines.unknown(str(values["name"])))
            raise PydanticCustomError("engine", "{text}", {"text": text, "below": "name"})
        return (section or EngineSection).model_validate(values)  # without a name: that is what it says


class ModelLoadingEngine(EngineSection):
    """An engine that holds one of transformers' models in this process."""

    device: How[Literal["auto", "cpu"]]
    """`auto` takes a GPU where there is one."""
    attn_implementation: How[Literal["sdpa", "eager", "flash_attention_2"]]
    """Which of transformers' attention functions computes."""
    allow_reference_kernels: How[bool]
    """Let a model above a billion parameters run on the slow pure-torch Mamba kernels."""


class LocalEngine(ModelLoadingEngine):
    """What every engine that trains transformers' model classes can be told."""

    extendable: ClassVar[bool] = True

    dtype: Literal["float32", "bfloat16"]
    """bfloat16: mixed precision over float32 weights."""
    gradient_checkpointing: How[bool]
    """Compute activations twice to keep fewer of them in memory."""


class TransformersEngine(LocalEngine):
    """transformers' model classes and Trainer."""

    name: Literal["transformers"]


class ModelSection(Section):
    """Architecture of a model that starts from random weights."""

    architecture: str
    """A name in `nemotron_engines/modeling/architectures`, or the path of a YAML file with NemotronHConfig fields."""
    overrides: dict[str, Any]
    """NemotronHConfig fields to change, such as `{hidden_size: 128}`."""


class RandomModelSection(ModelSection):
    """A model that starts from random weights where no data brings its tokenizer."""

    tokenizer: str
    """`tiny`, or the path of a Hugging Face tokenizer folder."""


class SplitSection(Section):
    """Shares of the rows, by hash of each row's key; the same row always falls on the same side."""

    train: float = Field(ge=0, le=1)
    valid: float = Field(ge=0, le=1)
    test: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def whole(self) -> "SplitSection":
        """The shares must sum to one."""
        total = self.train + self.valid + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"split shares sum to {total:g}, not 1")
        return self


class SourceSection(Section):
    """Rows to read: the built-in world, or the user's own files."""

    source: str | list[str] | None
    """`world`, or paths: files, folders, globs, or a blend JSON."""
    subset: str | None
    """Configuration of a hub data set, for a source `hf://org/name`."""
    hub_split: str | None
    """Split of a hub data set to read, such as `train`."""
    sample: int | None = Field(ge=1)
    """Read at most this many rows (the world: make this many)."""
    on_bad_row: Literal["error", "reject"]
    """A row that cannot be used: stop, or count it and write it to rejected.jsonl."""
    seed: int = Field(ge=0)
    """Seed of the world and of shuffling."""
    split: SplitSection
    key_field: str | None
    """Field whose hash decides a row's split. null: the row's own text or question."""


class PreparedSection(SourceSection):
    """Rows that are prepared in shards, by several workers."""

    workers: How[int | None] = Field(ge=1)
    """Processes that share the work; the result does not depend on it. null: one for each CPU."""
    executor: How[Literal["local", "ray"]]
    """`local`: processes of this machine. `ray`: tasks on a Ray cluster, joined or started here."""
    shard_mb: int = Field(ge=1)
    """Megabytes of input that one worker takes at a time."""
