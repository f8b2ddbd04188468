"""How a training shares a model and its rows out over GPUs, as its engine's section says it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nemotron_engines.nemo_rl.table import load_table
from nemotron_shared.config.training import GRPOConfig, TrainingConfig

Recomputed = Literal["nothing", "experts", "everything"]
"""What a backward pass computes a second time instead of keeping it."""


@dataclass(frozen=True)
class Layout:
    """Attributes:
    devices: GPUs, or processes on a CPU; `tensor`, `pipeline`, `context`, `expert`: how many share a matrix, the
        layers, a row, the experts.
    rows: of an optimizer step; `micro_rows` of one pass; `row_tokens` of one row.
    weight, gradient, optimizer: bytes of each parameter.
    shards: weights and gradients are shared out over all devices, too; the optimizer always is where `spread`.
    trained: False where adapters are trained and the weights are frozen.
    activation: bytes of each value that is kept for the backward pass.
    """

    devices: int
    rows: int
    row_tokens: int
    micro_rows: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    weight: float = 2
    gradient: float = 2
    optimizer: float = 12
    shards: bool = False
    spread: bool = True
    trained: bool = True
    recomputed: Recomputed = "nothing"
    activation: int = 2

    @property
    def replicas(self) -> int:
        """How many read different rows."""
        return max(1, self.devices // (self.tensor * self.pipeline * self.context))

    @property
    def micro_tokens(self) -> int:
        """Of one pass."""
        return self.micro_rows * self.row_tokens

    @property
    def passes(self) -> int:
        """Of each replica in a step."""
        return max(1, self.rows // (self.micro_rows * self.replicas))

    def __str__(self) -> str:
        split = {"TP": self.tensor, "PP": self.pipeline, "CP": self.context, "EP": self.expert}
        parts = [f"{name} {size}" for name, size in split.items() if size > 1]
        parts += ["sharded"] if self.shards and self.devices > 1 else []
        parts.append(f"{self.micro_rows} row{'s' if self.micro_rows > 1 else ''} of {self.row_tokens} a pass")
        return ", ".join(parts)


def layout_of(config: TrainingConfig, devices: int, row_tokens: int) -> Layout:
    """The layout of a config on so many devices; that of an engine from outside is one replica on each."""
    return LAYOUTS.get(config.engine.name, _whole)(config, devices, row_tokens)


def _whole(config: TrainingConfig, devices: int, row_tokens: int) -> Layout:
    engine = config.engine
    frozen = getattr(engine, "peft", None) is not None
    weight = 2 if frozen and getattr(engine, "dtype", "") == "bfloat16" else 4
    return Layout(
        devices=devices,
        rows=config.rows_per_step,
        row_tokens=row_tokens,
        micro_rows=config.train.micro_batch_size or max(1, config.rows_per_step // devices),
        weight=weight + (4 if _keeps_reference(config) else 0),
        gradient=0 if frozen else 4,
        optimizer=0 if frozen else 2 if getattr(engine, "optimizer", "") == "adamw_8bit" else 8,
        shards=getattr(engine, "strategy", "ddp") == "fsdp2",
        spread=getattr(engine, "strategy", "ddp") == "fsdp2",
        trained=not frozen,
        recomputed="everything" if getattr(engine, "gradient_checkpointing", False) else "nothing",
        activation=2 if getattr(engine, "dtype", "") == "bfloat16" else 4,
    )


def _keeps_reference(config: TrainingConfig) -> bool:
    return isinstance(config, GRPOConfig) and config.grpo.reference_policy_kl_penalty > 0


def _megatron(config: TrainingConfig, devices: int, row_tokens: int) -> Layout:
    engine: Any = config.engine
    frozen, small = engine.peft.scheme is not None, engine.mixed_precision is not None
    model, precision = _section(engine.overrides, "model"), _section(engine.overrides, "mixed_precision")
    reduced_in_32_bits = precision.get("grad_reduce_in_fp32", True) or not small
    # a recipe may keep float32 weights and both moments in 16 bits; in float32 there are no other weights
    optimizer = 6 if engine.recipe else 12 if small else 8
    experts = engine.recipe is not None or "moe" in (model.get("recompute_modules") or [])
    return Layout(
        devices=devices,
        rows=config.rows_per_step,
        row_tokens=row_tokens,
        micro_rows=config.train.micro_batch_size or 1,
        tensor=engine.tensor_model_parallel_size,
        pipeline=engine.pipeline_model_parallel_size,
        context=engine.context_parallel_size,
        expert=engine.expert_model_parallel_size * engine.expert_tensor_parallel_size,
        weight=2 if small else 4,
        gradient=0 if frozen else 4 if reduced_in_32_bits else 2,
        optimizer=0 if frozen else optimizer,
        trained=not frozen,
        recomputed="everything"
        if model.get("recompute_granularity") == "full"
        else "experts"
        if experts
        else "nothing",
        activation=2 if small else 4,
    )


def _automodel(config: TrainingConfig, devices: int, row_tokens: int) -> Layout:
    engine: Any = config.engine
    size, frozen = 2 if engine.weights_dtype == "bfloat16" else 4, engine.peft is not None
    return Layout(
        devices=devices,
        rows=config.rows_per_step,
        row_tokens=row_tokens,
        micro_rows=config.train.micro_batch_size or 1,
        tensor=engine.tp_size,
        context=engine.cp_size,
        expert=engine.ep_size,
        weight=size,
        gradient=0 if frozen else size,
        optimizer=0 if frozen else 2 * size,
        shards=engine.strategy == "fsdp2",
        spread=engine.strategy == "fsdp2",
        trained=not frozen,
        recomputed="everything" if engine.activation_checkpointing else "nothing",
        activation=2 if engine.dtype == "bfloat16" else 4,
    )


def _nemo_rl(config: TrainingConfig, devices: int, row_tokens: int) -> Layout:
    """As NeMo-RL's own recipe says it, and `engine.overrides` above it."""
    engine: Any = config.engine
    base = _section(load_table(engine.version).bases[engine.base].values, "policy")
    above = _section(engine.overrides, "policy")
    megatron = {**_section(base, "megatron_cfg"), **_section(above, "megatron_cfg")}
    tensors = {**_section(base, "dtensor_cfg"), **_section(above, "dtensor_cfg")}
    by_megatron = bool(megatron.get("enabled"))
    split = megatron if by_megatron else tensors
    return Layout(
        devices=devices,
        rows=config.rows_per_step,
        row_tokens=row_tokens,
        micro_rows=config.train.micro_batch_size or 1,
        tensor=split.get("tensor_model_parallel_size" if by_megatron else "tensor_parallel_size", 1),
        pipeline=megatron.get("pipeline_model_parallel_size", 1) if by_megatron else 1,
        context=split.get("context_parallel_size", 1),
        expert=megatron.get("expert_model_parallel_size", 1) if by_megatron else 1,
        gradient=2 if by_megatron else 4,
        shards=not by_megatron,
        recomputed="everything" if split.get("activation_checkpointing") else "nothing",
    )


def _section(overrides: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = overrides.get(name)
    return value if isinstance(value, Mapping) else {}


LAYOUTS: dict[str, Callable[[TrainingConfig, int, int], Layout]] = {
    "megatron_bridge": _megatron,
    "automodel": _automodel,
    "nemo_rl": _nemo_rl,
}
