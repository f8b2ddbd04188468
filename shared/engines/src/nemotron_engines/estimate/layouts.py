"""How a training distributes its model and rows over GPUs, according to its engine's section."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Literal

from nemotron_shared.config.training import GRPOConfig, TrainingConfig

SHARING = ("megatron_bridge", "automodel", "nemo_rl")
"""Engines with their own way of distributing a model, described in their module `layout`."""
Recomputed = Literal["nothing", "experts", "everything"]
"""What a backward pass recomputes instead of storing."""


@dataclass(frozen=True)
class Layout:
    """Attributes:
    devices: GPUs, or processes on a CPU; `tensor`, `pipeline`, `context`, `expert`: how many share a matrix, the
        layers, a row, the experts.
    rows: of an optimizer step; `micro_rows` of one pass; `row_tokens` of one row.
    weight, gradient, optimizer: bytes of each parameter.
    shards: weights and gradients are sharded over all devices, too; the optimizer is whenever `spread`.
    trained: False if adapters are trained and the weights are frozen.
    activation: bytes of each value stored for the backward pass.
    assumed: sentences about values that the config does not give.
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
    assumed: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas."""
        return max(1, self.devices // (self.tensor * self.pipeline * self.context))

    @property
    def micro_tokens(self) -> int:
        """Tokens of one pass."""
        return self.micro_rows * self.row_tokens

    @property
    def passes(self) -> int:
        """Passes per replica and step."""
        return max(1, self.rows // (self.micro_rows * self.replicas))

    def __str__(self) -> str:
        split = {"TP": self.tensor, "PP": self.pipeline, "CP": self.context, "EP": self.expert}
        parts = [f"{name} {size}" for name, size in split.items() if size > 1]
        parts += ["sharded"] if self.shards and self.devices > 1 else []
        parts.append(f"{self.micro_rows} row{'s' if self.micro_rows > 1 else ''} of {self.row_tokens} a pass")
        return ", ".join(parts)


def layout_of(config: TrainingConfig, devices: int, row_tokens: int) -> Layout:
    """The layout of a config on this many devices; engines from other packages count as one replica per device."""
    plain = Layout(devices, config.rows_per_step, row_tokens, config.micro_rows(devices))
    if config.engine.name not in SHARING:
        return _whole(config, plain)
    shared = import_module(f"nemotron_engines.{config.engine.name}.layout").layout(config, plain)
    return replace(shared, micro_rows=config.micro_rows(shared.replicas))


def _whole(config: TrainingConfig, plain: Layout) -> Layout:
    engine = config.engine
    frozen = getattr(engine, "peft", None) is not None
    weight = 2 if frozen and getattr(engine, "dtype", "") == "bfloat16" else 4
    return replace(
        plain,
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
