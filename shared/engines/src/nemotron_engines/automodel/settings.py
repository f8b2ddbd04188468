"""The `engine` section of NeMo Automodel, which the pretrain and SFT stages share.

Our own sections keep their names and meaning; this one holds what only Automodel knows. Whatever has no key of its own
is reached through `overrides`, under the names of Automodel's recipe:

    torchrun stages/sft/train.py -c tiny engine=automodel engine.overrides.clip_grad_norm.backend=te
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from nemotron_shared.config.schema import EngineSection, How, Section


class AutomodelPeft(Section):
    """Low-rank adapters beside frozen weights; the names are those of Automodel's `PeftConfig`."""

    dim: int = Field(ge=1)
    """Rank of an adapter."""
    alpha: int = Field(ge=1)
    """An adapter's output is scaled by alpha / dim."""
    dropout: float = Field(ge=0, lt=1)
    match_all_linear: bool
    """Adapt every linear layer but Mamba's `out_proj` and what `exclude_modules` names."""
    target_modules: list[str]
    """Names, or patterns with `*`, of the layers to adapt; instead of `match_all_linear`."""
    exclude_modules: list[str]
    """Names or patterns that `match_all_linear` leaves out."""
    use_triton: bool
    """Triton kernels for the adapters; a GPU is needed."""

    @model_validator(mode="after")
    def one_choice(self) -> "AutomodelPeft":
        """Layers are chosen in exactly one way."""
        if self.match_all_linear == bool(self.target_modules):
            raise ValueError("set either engine.peft.match_all_linear=true or engine.peft.target_modules, not both")
        if self.target_modules and self.exclude_modules:
            raise ValueError("engine.peft.exclude_modules goes with match_all_linear=true, not with target_modules")
        return self


class AutomodelChats(Section):
    """Chats that Automodel's own ChatDataset reads, renders and masks."""

    train: str | None
    """JSONL file with OpenAI messages."""
    valid: str | None
    """JSONL file to validate on. null: no validation."""
    seq_length: int = Field(ge=8)
    """Longer chats are cut here."""
    pack: bool
    """Put several chats into one row (NEAT packing); false: one chat per row, padded to the longest of a batch."""


class AutomodelBackend(Section):
    """Which code computes what, in Automodel's `BackendConfig`."""

    attn: Literal["sdpa", "te", "flex"]
    linear: Literal["torch", "te"]
    rms_norm: Literal["torch", "torch_fp32", "te"]
    experts: Literal["torch", "torch_mm", "te", "gmm"]
    dispatcher: Literal["torch", "deepep", "hybridep"]
    rope_fusion: bool


class AutomodelEngine(EngineSection):
    """NeMo Automodel's recipe for next-token prediction, over its own NemotronH class."""

    name: Literal["automodel"]
    container: How[str | None]
    """Image that a recipe is made for. null: the environment that runs it."""
    data: Literal["packed", "chat"]
    """`packed`: the rows of our data artifact. `chat`: Automodel's ChatDataset over the files of `chats`."""
    chats: AutomodelChats
    dtype: Literal["float32", "bfloat16"]
    """Type of the computation; the weights are kept in float32 either way."""
    strategy: How[Literal["fsdp2", "ddp"]]
    """`fsdp2` shards weights, gradients and optimizer over the processes, `ddp` keeps them whole on each."""
    tp_size: How[int] = Field(ge=1)
    """Processes that share each matrix."""
    cp_size: How[int] = Field(ge=1)
    """Processes that share each row."""
    ep_size: How[int] = Field(ge=1)
    """Processes that share the experts."""
    activation_checkpointing: How[bool]
    """Compute activations twice to keep fewer of them in memory."""
    backend: AutomodelBackend
    peft: AutomodelPeft | None
    """null: all weights are trained."""
    allow_custom_targets: bool
    """Let `overrides` name code outside Automodel and torch in a `_target_`."""
    overrides: dict[str, Any]
    """Values of Automodel's recipe, checked against its own classes."""

    @model_validator(mode="after")
    def possible(self) -> "AutomodelEngine":
        """Combinations that Automodel cannot run."""
        if self.strategy == "ddp" and max(self.tp_size, self.cp_size, self.ep_size) > 1:
            raise ValueError("engine.strategy=ddp shares nothing; set tp_size, cp_size and ep_size to 1, or use fsdp2")
        if self.strategy == "ddp" and self.dtype == "bfloat16":
            raise ValueError("engine.dtype=bfloat16 needs engine.strategy=fsdp2, whose policy keeps float32 weights")
        if self.data == "chat" and self.chats.train is None:
            raise ValueError("engine.data=chat needs engine.chats.train, a JSONL file with OpenAI messages")
        return self

    def own_files(self) -> tuple[str | None, ...]:
        """Files of the user's that the result depends on."""
        return (self.chats.train, self.chats.valid) if self.data == "chat" else ()
