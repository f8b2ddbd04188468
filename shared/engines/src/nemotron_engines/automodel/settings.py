"""The `engine` section of NeMo Automodel, which the pretrain and SFT stages share.

Our own sections keep their names and meaning; this one holds settings that only Automodel has. `overrides` reaches all
other values, under the names of Automodel's recipe:

    torchrun stages/sft/train.py -c tiny engine=automodel ++engine.overrides.clip_grad_norm.backend=te
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from nemotron_engines.overrides import unchecked
from nemotron_shared.config.schema import EngineSection, How, Section


class AutomodelPeft(Section):
    """Low-rank adapters on frozen weights; the names are those of Automodel's `PeftConfig`."""

    dim: int = Field(ge=1)
    """Rank."""
    alpha: int = Field(ge=1)
    """The adapter's output is scaled by alpha / dim."""
    dropout: float = Field(ge=0, lt=1)
    """Dropout in the adapter."""
    match_all_linear: bool
    """Adapt every linear layer except Mamba's `out_proj` and `exclude_modules`."""
    target_modules: list[str]
    """Names, or patterns with `*`, of the layers to adapt; instead of `match_all_linear`."""
    exclude_modules: list[str]
    """Layers that `match_all_linear` leaves out."""
    use_triton: bool
    """Triton kernels for the adapters; needs a GPU."""

    @model_validator(mode="after")
    def one_choice(self) -> "AutomodelPeft":
        """Require exactly one way of choosing layers."""
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
    """JSONL file to validate on. `null`: no validation."""
    seq_length: int = Field(ge=8)
    """Longer chats are cut here; also the length of a packed row."""
    pack: bool
    """Put several chats into one row (NEAT packing); false: one chat per row, padded to the longest of a batch."""


class AutomodelBackend(Section):
    """Implementations of the layers, as in Automodel's `BackendConfig`."""

    attn: Literal["sdpa", "te", "flex"]
    """`sdpa`, `te` or `flex`."""
    linear: Literal["torch", "te"]
    """`torch` or `te`."""
    rms_norm: Literal["torch", "torch_fp32", "te"]
    """`torch`, `torch_fp32` or `te`."""
    experts: Literal["torch", "torch_mm", "te", "gmm"]
    """`torch`, `torch_mm`, `te` or `gmm`."""
    dispatcher: Literal["torch", "deepep", "hybridep"]
    """`torch`, `deepep` or `hybridep`."""
    rope_fusion: bool
    """Fused rotary embedding."""


class AutomodelEngine(EngineSection):
    """NeMo Automodel's recipe for next-token prediction, over its own NemotronH class."""

    unused: ClassVar[Mapping[str, str]] = {
        "logger.tensorboard": "Automodel writes no TensorBoard files",
        "checkpoint.publish_best": "Automodel exports the model of the last step alone",
    }

    name: Literal["automodel"]
    container: How[str | None]
    """Container image that a recipe is made for. `null`: the environment that runs it."""
    data: Literal["packed", "chat"]
    """`packed`: the rows of the data artifact. `chat`: the files of `engine.chats`."""
    chats: AutomodelChats
    weights_dtype: Literal["float32", "bfloat16"]
    """Dtype of the weights, and so of gradients, adapters and optimizer: 2 bytes each in `bfloat16`."""
    dtype: Literal["float32", "bfloat16"]
    """Compute dtype: `float32`, or `bfloat16` (with FSDP2 or bfloat16 weights)."""
    strategy: How[Literal["fsdp2", "ddp"]]
    """`fsdp2` shards weights, gradients and optimizer over the processes; `ddp` replicates them."""
    tp_size: How[int] = Field(ge=1)
    """Tensor parallelism: processes that share a matrix."""
    cp_size: How[int] = Field(ge=1)
    """Context parallelism: processes that share a row."""
    ep_size: How[int] = Field(ge=1)
    """Expert parallelism: processes that share the experts."""
    activation_checkpointing: How[bool]
    """Recompute activations in the backward pass to save memory."""
    backend: AutomodelBackend
    peft: AutomodelPeft | None
    """Adapters, see below. `null`: train all weights."""
    allow_custom_targets: bool
    """Let `overrides` name any code in a `_target_` or `*_fn`, not only well-known losses, optimizers and collators."""
    overrides: dict[str, Any]
    """Any other value of Automodel's recipe, under its own names."""

    @model_validator(mode="after")
    def possible(self) -> "AutomodelEngine":
        """Refuse combinations that Automodel cannot run."""
        if self.strategy == "ddp" and max(self.tp_size, self.cp_size, self.ep_size) > 1:
            raise ValueError("engine.strategy=ddp does not shard: set tp_size, cp_size and ep_size to 1, or use fsdp2")
        if self.strategy == "ddp" and self.dtype != self.weights_dtype:
            raise ValueError("engine.strategy=ddp computes in the dtype of the weights: set engine.dtype to it")
        if self.data == "chat" and self.chats.train is None:
            raise ValueError("engine.data=chat needs engine.chats.train, a JSONL file with OpenAI messages")
        given = [key for key in ("train", "valid") if getattr(self.chats, key) is not None]
        if self.data == "packed" and given:
            without = " ".join(f"engine.chats.{key}=null" for key in given)
            raise ValueError(f"engine.chats.{given[0]} only works with engine.data=chat: set that, or {without}")
        return self

    def own_files(self) -> tuple[str | None, ...]:
        """The user's files that the result depends on."""
        return (self.chats.train, self.chats.valid) if self.data == "chat" else ()

    @property
    def notes(self) -> list[str]:
        """A note on keys that were not checked."""
        return unchecked(self.overrides, "Automodel")
