"""Sections that every stage's schema is made of. Names follow Megatron-Bridge where it has one.

A field has no default: `config/default.yaml` is the one place where defaults are written down.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
    """What all engines have in common."""

    extendable: ClassVar[bool] = False
    """Whether a longer training can go on from the last state of a shorter one."""


class LocalEngine(EngineSection):
    """What every engine over transformers' model classes can be told."""

    extendable: ClassVar[bool] = True

    device: How[Literal["auto", "cpu"]]
    """`auto` takes a GPU where there is one."""
    dtype: Literal["float32", "bfloat16"]
    """bfloat16: mixed precision over float32 weights."""
    attn_implementation: How[Literal["sdpa", "eager", "flash_attention_2"]]
    gradient_checkpointing: How[bool]
    allow_reference_kernels: How[bool]
    """Let a model above a billion parameters run on the slow pure-torch Mamba kernels."""


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


class TrainSection(Section):
    """How much to train."""

    train_iters: int = Field(ge=1)
    """Optimizer steps."""
    global_batch_size: int = Field(ge=1)
    """Rows per optimizer step, over all processes."""
    micro_batch_size: How[int | None] = Field(ge=1)
    """Rows per forward pass and process; the rest is gradient accumulation. null: all in one pass."""
    eval_interval: How[int] = Field(ge=1)
    """Steps between validations; the last step is always validated."""
    eval_rows: How[int] = Field(ge=1)
    """Rows per validation."""

    @model_validator(mode="after")
    def divisible(self) -> "TrainSection":
        """The global batch must be made of whole micro batches."""
        if self.micro_batch_size and self.global_batch_size % self.micro_batch_size:
            raise ValueError(
                f"train.global_batch_size {self.global_batch_size} is not a multiple of "
                f"train.micro_batch_size {self.micro_batch_size}; change one of them"
            )
        return self


class OptimizerSection(Section):
    """AdamW."""

    lr: float = Field(gt=0)
    min_lr: float = Field(ge=0)
    """Learning rate at the end of decay."""
    weight_decay: float = Field(ge=0)
    adam_beta1: float = Field(ge=0, lt=1)
    adam_beta2: float = Field(ge=0, lt=1)
    adam_eps: float = Field(gt=0)
    clip_grad: float = Field(gt=0)
    """Largest gradient norm."""


class SchedulerSection(Section):
    """Learning rate over time."""

    lr_decay_style: Literal["constant", "linear", "cosine", "WSD"]
    lr_warmup_iters: int = Field(ge=0)
    lr_wsd_decay_iters: int = Field(ge=0)
    """Steps of decay at the end of WSD (warmup, stable, decay)."""


class CheckpointSection(Section):
    """What survives a kill."""

    save_interval: How[int] = Field(ge=1)
    """Steps between checkpoints; one is also written at the end and on SIGTERM or SIGINT."""
    most_recent_k: How[int] = Field(ge=1)
    """Newest checkpoints to keep."""
    keep_best: How[bool]
    """Keep the checkpoint with the best validation as well, however old (engines transformers, trl and automodel)."""
    keep_last_state: How[bool]
    """Keep the last checkpoint of a finished training, so that more `train.train_iters` can go on from it."""


class LoggerSection(Section):
    """Where figures go besides the console and metrics.jsonl."""

    log_interval: How[int] = Field(ge=1)
    """Steps between console lines."""
    tensorboard: How[bool]
    wandb_project: How[str | None]
    """Weights & Biases project; null: W&B is not used."""
    wandb_entity: How[str | None]


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
    """Rows to read: the synthetic data, or the user's own files."""

    source: str | list[str] | None
    """`synthetic`, or paths: files, folders, globs, or a blend JSON."""
    subset: str | None
    """Configuration of a hub data set, for a source `hf://org/name`."""
    hub_split: str | None
    """Split of a hub data set to read, such as `train`."""
    sample: int | None = Field(ge=1)
    """Read at most this many rows (the synthetic ones: make this many)."""
    on_bad_row: Literal["error", "reject"]
    """A row that cannot be used: stop, or count it and write it to rejected.jsonl."""
    seed: int = Field(ge=0)
    """Seed of the synthetic rows and of shuffling."""
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
