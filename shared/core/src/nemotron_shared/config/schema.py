"""What every stage's schema is made of, and the sections of engines and models.

Names follow Megatron-Bridge where it has one. A field has no default: `config/default.yaml` is the one place where
defaults are written down.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeVar

from nemotron_shared.config.registry import Registry

HOW, EXTRA = "how", "extra"
MOST = 2**32 - 1
"""NumPy takes no larger seed, and nothing that a setting counts comes near."""
MOST_TOKENS = 2**24
"""Of a row: far beyond what any model reads."""
MOST_WORKERS = 4096
LONGEST_PREFIX = 60
"""Characters of `run.name`, so that the longest kind of artifact and a digest fit into a folder's name with it."""
Value = TypeVar("Value")
How = Annotated[Value, HOW]
"""A setting of how the work is done and not of what comes out: it may differ between two attempts at one result."""
Extra = Annotated[Value, EXTRA]
"""A setting whose 0, false, `null` or empty list means that there is nothing of the kind: results from before it keep
their name."""


def a_number(model: type[BaseModel], value: object, info: ValidationInfo) -> object:
    """The value, unless it is true or false where a field takes numbers only, which pydantic would count as 1 and 0."""
    if not isinstance(value, bool):
        return value
    annotation = model.model_fields[str(info.field_name)].annotation
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = {get_args(one)[0] if get_origin(one) is Annotated else one for one in members}
    if kinds <= {int, float, NoneType}:
        raise ValueError("needs a number, which true and false are not")
    return value


class Section(BaseModel):
    """Frozen; an unknown key is an error, and so is a number that is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def no_number(cls, value: object, info: ValidationInfo) -> object:
        """See `a_number`."""
        return a_number(cls, value, info)

    @field_validator("*")
    @classmethod
    def not_endless(cls, value: object) -> object:
        """No whole number is beyond `MOST`."""
        if isinstance(value, int) and abs(value) > MOST:
            raise ValueError(f"needs a number up to {MOST:,}")
        return value

    @classmethod
    def how_keys(cls) -> frozenset[str]:
        """The settings of this section that are marked as `How`."""
        return frozenset(name for name, field in cls.model_fields.items() if HOW in field.metadata)

    @classmethod
    def extra_keys(cls) -> frozenset[str]:
        """The settings of this section that are marked as `Extra`."""
        return frozenset(name for name, field in cls.model_fields.items() if EXTRA in field.metadata)


class RunSection(Section):
    """What this run reads, where it writes, and how it starts."""

    family: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Model family: it names the recipe and the architecture of random weights. The `nemotron` command sets it."""
    name: How[str] = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=LONGEST_PREFIX)
    """First part of the name of every artifact that is made here or meant by a short form: `qwen3` makes
    `qwen3-sft-model`."""
    home: How[str | None]
    """Folder of the artifact store. `null`: `$NEMOTRON_HOME`, else `.nemotron` in the working directory, or at the top
    of the repository that one is in."""
    data: How[str | None]
    """Data artifact to read."""
    model: How[str | None]
    """Model to start from, or in eval the one in question: an artifact, the path of a Hugging Face folder, the name of
    a model on the hub (`hf://org/name[@revision]`, or just `org/name`), or `megatron:PATH`. `null`: random weights."""
    missing_data: How[Literal["error", "prepare"]]
    """What to do when `run.data` does not exist: `error` stops, `prepare` runs data preparation first. Another name or
    version than that makes, written by you, is an error."""
    missing_model: How[Literal["error", "random"]]
    """What to do when `run.model` does not exist: `error` stops, `random` takes random weights. One that you name is
    an error."""
    seed: int = Field(ge=0)
    """Seed of weights, data order and sampling."""
    force: How[bool]
    """Do the work again even where a finished result exists; `--force` sets it."""
    on_change: How[Literal["continue", "restart", "refuse"]]
    """When an unfinished run is found, and settings of how it is done or its code have changed since: `continue`,
    `restart`, or `refuse`."""
    threads: How[int | None] = Field(ge=1, le=MOST_WORKERS)
    """CPU threads per process. `null`: as many as torch likes."""
    nproc_per_node: How[int] = Field(ge=1)
    """Processes that the `nemotron` command starts on this machine. torchrun sets its own number."""
    publish_to: How[str | None]
    """Path of a link to the result, such as `results/mine`: the model, or in eval the scores. It may replace an empty
    folder or a link to an earlier version. `null`: the result is in the store only."""
    env: How[dict[str, Any]]
    """Facts about machines that this recipe wants, by the keys of env.toml; a profile comes after them."""


class EngineSection(Section):
    """What all engines have in common: which one it is."""

    extendable: ClassVar[bool] = False
    """Whether a longer training can continue from the last state of a shorter one."""
    packed_rows_one_by_one: ClassVar[bool] = False
    """Whether a forward pass takes a single packed row."""
    unused: ClassVar[Mapping[str, str]] = {}
    """Settings of the stage that have no effect with this engine, and why. Its modules read every other one; a start
    reports those that the user sets."""

    name: str
    """Name of the engine; `engine=NAME` brings its whole block."""

    def own_files(self) -> tuple[str | None, ...]:
        """Files that the engine reads besides the artifacts, and that the result depends on."""
        return ()

    @property
    def notes(self) -> list[str]:
        """What a start and a dry run say about these settings."""
        return []


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
    """Settings of the chosen engine; `engine=NAME` brings its whole block."""

    @property
    def notes(self) -> list[str]:
        """What a start says of settings that only mean something together, and about those of the engine."""
        return self.engine.notes

    @property
    def unused(self) -> dict[str, str]:
        """Settings that have no effect with what else the config says: with what, and why."""
        return {key: f"with engine={self.engine.name}: {why}" for key, why in self.engine.unused.items()}

    @classmethod
    def engine_class(cls, values: object) -> type[EngineSection] | None:
        """The class of an engine's section; None where its values name no engine of this stage."""
        name = values.get("name") if isinstance(values, dict) else None
        return cls.engines.load(name).settings if isinstance(name, str) and name in cls.engines.places() else None

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
    """`auto` takes a GPU where there is one; `cpu` never does."""
    attn_implementation: How[Literal["sdpa", "eager", "flash_attention_2"]]
    """Attention of transformers: `sdpa`, `eager` or `flash_attention_2`."""
    allow_reference_kernels: How[bool]
    """Let a model above one billion parameters run on the slow pure-torch Mamba kernels."""


LayerKind = Literal["attention", "mamba_in", "mamba_out", "mlp", "experts", "shared_experts", "latent"]
"""What a block's linear layers are for; `latent` are the projections around the experts of Super."""


class LoraSection(Section):
    """Low-rank adapters on frozen weights. Settings shared with Automodel's section have the same names."""

    dim: int = Field(ge=1)
    """Rank."""
    alpha: int = Field(ge=1)
    """The adapter's output is scaled by alpha / dim."""
    dropout: float = Field(ge=0, lt=1)
    """Dropout in the adapter; 0 where routed experts are adapted."""
    layers: list[LayerKind] | None
    """Kinds of layers: `attention`, `mamba_in`, `mamba_out`, `mlp`, `experts`, `shared_experts`, `latent`. `null`: all
    that the model has except those with which PEFT cannot load an adapter: `mamba_out`, and `mlp` and `shared_experts`
    next to the experts of DeepSeek's and Qwen's mixtures; with `target_modules`, only those."""
    target_modules: list[str]
    """Names, or patterns with `*`, of what is adapted besides `layers`: the only way to `lm_head`, the embeddings and
    the routers."""
    exclude_modules: list[str]
    """Names, or patterns with `*`, of what is left out."""


class LocalEngine(ModelLoadingEngine):
    """What every engine that trains transformers' model classes can be told."""

    extendable: ClassVar[bool] = True

    dtype: Literal["float32", "bfloat16"]
    """`float32`, or `bfloat16` for mixed precision over float32 weights. With `peft` the frozen weights are bfloat16,
    too."""
    save_dtype: Literal["float32", "bfloat16"] | None
    """Type of the published weights; what is computed in is another matter. `null`: that of the model that training
    begins with, float32 for random weights."""
    gradient_checkpointing: How[bool]
    """Compute activations twice to keep fewer of them in memory."""
    optimizer: Literal["adamw", "adamw_8bit"]
    """`adamw` keeps its two moments in float32; `adamw_8bit`, of bitsandbytes, in one byte each."""
    strategy: Literal["ddp", "fsdp2"]
    """`fsdp2` shards weights, gradients and optimizer over the processes, `ddp` keeps them whole on each."""
    peft: LoraSection | None
    """LoRA, as in `engine=transformers_lora` and `engine=trl_lora`; `null` trains all weights."""

    @model_validator(mode="after")
    def possible(self) -> "LocalEngine":
        """Refuse sharding with adapters or 8-bit moments, which need unsharded weights."""
        if self.strategy == "fsdp2" and self.peft is not None:
            raise ValueError("engine.strategy=fsdp2 trains all weights: set engine.peft=null, or engine.strategy=ddp")
        if self.strategy == "fsdp2" and self.optimizer != "adamw":
            raise ValueError("engine.strategy=fsdp2 shards the float32 moments: set engine.optimizer=adamw")
        return self


class TransformersEngine(LocalEngine):
    """transformers' model classes and Trainer."""

    name: Literal["transformers"]
    moe_router_bias_update_rate: Extra[float] = Field(ge=0)
    """After each step, how far each router's correction moves towards the experts with less than their share. 0: never;
    the recipes of Nemotron 3 have 1e-3."""
    moe_aux_loss_coeff: Extra[float] = Field(ge=0)
    """Weight of the sequence auxiliary loss, which an uneven load within a row raises. 0: none; the recipes have
    1e-4."""

    mtp_num_layers: Extra[int] = Field(ge=0)
    """Multi-token prediction: how many tokens beyond the next are predicted, by one block that is repeated. 0: none;
    the recipes of Nemotron 3 Super have 2."""
    mtp_loss_scaling_factor: Extra[float] = Field(ge=0)
    """Weight of the mean loss of those predictions; the recipes have 0.3. Must be 0 without predictions."""

    @model_validator(mode="after")
    def of_whole_weights(self) -> "TransformersEngine":
        """Adapters leave routers and the predicting block as they are, and a block without a loss is not trained."""
        wanted = [name for name in sorted(self.extra_keys()) if getattr(self, name)]
        if self.peft is not None and wanted:
            told = " ".join(f"engine.{name}=0" for name in wanted)
            raise ValueError(f"adapters (engine.peft) train none of that: set {told}, or engine.peft=null")
        if bool(self.mtp_num_layers) != bool(self.mtp_loss_scaling_factor):
            alone = self.mtp_num_layers or self.mtp_loss_scaling_factor
            given = f"engine.{'mtp_num_layers' if self.mtp_num_layers else 'mtp_loss_scaling_factor'}={alone}"
            other = "engine.mtp_loss_scaling_factor=0.3" if self.mtp_num_layers else "engine.mtp_num_layers=2"
            raise ValueError(f"{given} does nothing alone: add {other}, as the recipes have it, or set both to 0")
        return self


class ModelSection(Section):
    """Architecture of a model that starts from random weights."""

    architecture: str
    """Architecture of random weights: a family (`nano3`), its small twin (`nano3_tiny`), or the path of a YAML file
    with NemotronHConfig fields. Used only without a model to start from."""
    overrides: dict[str, Any]
    """NemotronHConfig fields to change, such as `{hidden_size: 128}`."""


class RandomModelSection(ModelSection):
    """A model that starts from random weights where no data brings its tokenizer."""

    tokenizer: str
    """Tokenizer of random weights: `tiny`, or the path of a Hugging Face tokenizer folder."""
