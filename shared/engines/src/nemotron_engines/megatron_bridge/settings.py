"""The `engine` section of Megatron-Bridge, which the pretrain and SFT stages share.

Our own sections keep their names and meaning; this one holds settings that only Megatron-Bridge has. `overrides`
reaches all other values, under the names of Bridge's ConfigContainer:

    nemotron super3 pretrain -c super3_phase1 ++engine.overrides.model.moe_aux_loss_coeff=1e-3
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from nemotron_engines.overrides import unchecked
from nemotron_shared.config.schema import EngineSection, How, Section


class MegatronPeft(Section):
    """Adapters on frozen weights."""

    scheme: Literal["lora", "dora"] | None
    """`lora` or `dora`. `null`: train every weight."""
    dim: int = Field(ge=1)
    """Rank of an adapter."""
    alpha: int = Field(ge=1)
    """An adapter's output is scaled by alpha / dim."""
    dropout: float = Field(ge=0, lt=1)
    """Dropout on an adapter's inputs."""
    target_modules: list[str] = Field(min_length=1)
    """Linear layers to adapt, by Megatron's names."""


class MegatronBridgeEngine(EngineSection):
    """Megatron-Bridge: recipes for clusters of GPUs, and a tiny model on a CPU."""

    packed_rows_one_by_one = True
    unused: ClassVar[Mapping[str, str]] = {"checkpoint.keep_best": "Megatron-Bridge keeps the newest checkpoints alone"}

    name: Literal["megatron_bridge"]
    recipe: str | None = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    """Function below `megatron.bridge.recipes`, such as `nemotronh.nemotron_3_super.nemotron_3_super_pretrain_config`.
    `null`: a model made from `model.architecture`, with Bridge's general settings."""
    container: How[str | None]
    """Container image that the recipe is made for; not started by the engine. `null`: the environment that runs it."""
    device: How[Literal["auto", "cpu"]]
    """`auto` uses GPUs if there are any. Without one, TE-only settings are switched off, with a notice."""
    world_size: How[int | None] = Field(ge=1)
    """Processes that the layout is made for; an error about a number of processes that does not fit names it. `null`:
    any."""
    tensor_model_parallel_size: How[int] = Field(ge=1)
    """TP: processes that share each large matrix."""
    pipeline_model_parallel_size: How[int] = Field(ge=1)
    """PP: pipeline stages that share the layers."""
    context_parallel_size: How[int] = Field(ge=1)
    """CP: processes that share a row's tokens. Refused in fine-tuning: the packer does not pad."""
    expert_model_parallel_size: How[int] = Field(ge=1)
    """EP: processes that share the experts."""
    expert_tensor_parallel_size: How[int] = Field(ge=1)
    """Processes that share the matrices of each expert."""
    sequence_parallel: How[bool]
    """Split the work between TP's matrices, too. Needs TP above 1; mixture-of-experts training with TP requires it."""
    moe_token_dispatcher_type: How[Literal["allgather", "alltoall", "flex"]]
    """How tokens reach their experts: `allgather`, `alltoall`, or `flex`."""
    moe_flex_dispatcher_backend: How[Literal["deepep", "hybridep", "ncclep"] | None]
    """Library behind `flex`: `deepep`, `hybridep` or `ncclep`."""
    mixed_precision: str | None
    """A precision of Bridge, such as `bf16_mixed` or `bf16_with_fp8_current_scaling_mixed`. `null`: float32."""
    peft: MegatronPeft
    start_from: Literal["weights", "state"]
    """What to load from `run.model`. `weights`: only the weights, with steps counted from 0. `state`: continue a run
    that kept its Megatron checkpoint, with its optimizer, schedule and step."""
    stop_at: int | None = Field(ge=1)
    """Stop after this step, although the schedule extends to `train.train_iters`."""
    keep_checkpoint: bool
    """Put the last Megatron checkpoint into the artifact, as `megatron/`; a run whose `run.model` has one starts from
    it. Refused with adapters: Bridge saves them without the base weights."""
    overrides: dict[str, Any]
    """Fields of Bridge's ConfigContainer by section, such as `{ddp: {overlap_grad_reduce: false}}`."""

    @model_validator(mode="after")
    def possible(self) -> "MegatronBridgeEngine":
        """Require a backend for the flex dispatcher and for no other; and refuse sequence parallelism without tensor
        parallelism, which Megatron would silently turn off."""
        if (self.moe_token_dispatcher_type == "flex") != (self.moe_flex_dispatcher_backend is not None):
            raise ValueError(
                "engine.moe_flex_dispatcher_backend goes with engine.moe_token_dispatcher_type=flex, and only with it"
            )
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ValueError("engine.sequence_parallel needs engine.tensor_model_parallel_size above 1")
        return self

    @property
    def notes(self) -> list[str]:
        """A note on keys that were not checked."""
        return unchecked(self.overrides, "Megatron-Bridge")
