"""Peak bytes of one GPU by part, from how the training's engine shares the model and its rows out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

from nemotron_engines.modeling.architecture import DEFAULTS, NEMOTRON_H, Parameters
from nemotron_shared.config.training import GRPOConfig, TrainingConfig

# How a training shares a model and its rows out over GPUs, by its engine's section.


SHARING = ("megatron_bridge", "automodel", "nemo_rl")
"""Engines with their own way of distributing a model, described in their module `layout`."""
Recomputed = Literal["nothing", "experts", "everything"]
"""What a backward pass recomputes instead of storing."""


@dataclass(frozen=True)
class Layout:
    """Attributes:
    devices: GPUs, or processes on a CPU; `tensor`, `pipeline`, `context`, `expert`: how many share a matrix, the
        layers, a row, the experts.
    rows: of an optimizer step; `micro_rows` of one pass; `row_tokens` of one row; `longest` of the longest one, to
        which the others of a pass are padded, or 0 if they have the same length.
    weight, gradient, optimizer: bytes of each parameter.
    shards: weights and gradients are sharded over all devices, too; the optimizer is whenever `spread`.
    trained: False if adapters are trained and the weights are frozen.
    activation: bytes of each value stored for the backward pass.
    tiled: whether log-probabilities are computed by TRL's head, in tiles.
    all_logits: tensors of a value for each logit of a pass that are there at once; 0 where the loss takes chunks.
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
    longest: int = 0
    tiled: bool = False
    all_logits: int = 0
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
    def padded_tokens(self) -> int:
        """Tokens of the largest pass, with those that fill its rows up."""
        return self.micro_rows * max(self.row_tokens, self.longest)

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
    shared = import_module(f"nemotron_engines.{config.engine.name}.needs").layout(config, plain)
    return replace(shared, micro_rows=config.micro_rows(shared.replicas))


def _whole(config: TrainingConfig, plain: Layout) -> Layout:
    engine = config.engine
    frozen = getattr(engine, "peft", None) is not None
    weight = 2 if frozen and getattr(engine, "dtype", "") == "bfloat16" else 4
    return replace(
        plain,
        weight=weight + 4 * _further_models(config),
        gradient=0 if frozen else 4,
        optimizer=0 if frozen else 2 if getattr(engine, "optimizer", "") == "adamw_8bit" else 8,
        shards=getattr(engine, "strategy", "ddp") == "fsdp2",
        spread=getattr(engine, "strategy", "ddp") == "fsdp2",
        trained=not frozen,
        recomputed="everything" if getattr(engine, "gradient_checkpointing", False) else "nothing",
        activation=2 if getattr(engine, "dtype", "") == "bfloat16" else 4,
        tiled=isinstance(config, GRPOConfig) and config.distillation is None,
        all_logits=DISTILLED * (isinstance(config, GRPOConfig) and config.distillation is not None),
    )


DISTILLED = 6
"""Tensors of all logits in distillation: logits and log-probabilities of student and teacher, and their distances."""
ALL_LOGITS = {"scale": 3, "cap": 4}
"""The same of a model that changes its logits: logarithms, two slopes, and the tangents that a cap keeps."""


def _further_models(config: TrainingConfig) -> int:
    return config.further_models if isinstance(config, GRPOConfig) else 0


CONTEXT_BYTES = 4 * 10**9
"""Memory of a GPU process besides its tensors: CUDA context, kernels, communication buffers."""

PROCESS_BYTES = 1_060_000_000
"""Memory of a CPU process besides its tensors: Python with torch, transformers and TRL, as resident on Linux. Measured:
0.98 GB before the first step, and what the step itself imports; the tiny trainings hold 1.04 to 1.11 GB."""
CHUNKED, CHUNK = 2**22, 2**20
"""Logits of a pass from which a loss on a CPU is computed in chunks, and of a chunk (`modeling.head_loss`)."""
TILE = 4096, 32768
"""Most tokens and logits of a tile of TRL's head (1.16), which computes every position of a batch on a CPU."""
TILES = 8.25
"""Float32 values for each logit of a tile at the peak of its backward pass: logits scaled twice, their logarithms,
probabilities and slopes, and the targets as booleans, as numbers, and less the probabilities."""
SCANNED = 32
"""Tokens between two states of our scan that are kept."""
ROOM = 1.2
"""Memory for activations on a CPU, over the part that is kept for the backward pass: the gaps that an allocator leaves
between them. Measured with glibc 2.36 in trainings whose live tensors a profiler counted: 1.16 to 1.25 times. Tensors
of 32 MB or more, as those of TRL's tiles, are mapped by themselves, and leave none."""


def memory_parts(
    fields: dict[str, Any], vocab_size: int, parameters: Parameters, layout: Layout, *, on_gpu: bool
) -> dict[str, float]:
    """Weights, gradients, optimizer, activations, logits, and the overhead of a process."""
    dense, experts = parameters.total - parameters.experts, parameters.experts
    own = dense / layout.tensor / layout.pipeline + experts / layout.expert / layout.pipeline
    everything = parameters.total / layout.devices
    held = everything if layout.shards else own
    whole = _largest_layer(fields, parameters) if layout.shards and layout.devices > 1 else 0
    if on_gpu:
        activations, logits = _activations(fields, layout, _values), _logits(vocab_size, layout)
    else:
        activations = ROOM * _activations(fields, layout, _values_of_modules)
        logits = _logits_of_modules(fields["hidden_size"], vocab_size, layout)
    return {
        "weights": layout.weight * held + 2 * whole,
        "gradients": layout.gradient * held,
        "optimizer": layout.optimizer * (everything if layout.spread else own),
        "activations": activations,
        "logits": logits,
        "CUDA and communication": CONTEXT_BYTES if on_gpu else 0,
        "Python and libraries": 0 if on_gpu else PROCESS_BYTES,
    }


def _largest_layer(fields: dict[str, Any], parameters: Parameters) -> float:
    """Parameters of the largest layer, which is gathered while it computes, plus the next one, which is prefetched."""
    pattern = (DEFAULTS | fields)["hybrid_override_pattern"]
    return 2 * max(parameters.experts / max(1, pattern.count("E")), parameters.total / 2 / max(1, len(pattern)))


def _activations(fields: dict[str, Any], layout: Layout, values_of: Callable[[str, dict[str, Any]], float]) -> float:
    """Activations that the forward pass stores for the backward pass.

    A pipeline's first stage stores as many passes as there are stages, each for its share of the layers.
    """
    pattern, hidden = (DEFAULTS | fields)["hybrid_override_pattern"], fields["hidden_size"]
    kept = {kind: values_of(kind, DEFAULTS | fields) for kind in "M*E-"}
    if layout.recomputed == "experts":
        kept["E"] = hidden
    values = sum(kept[kind] for kind in pattern)
    if layout.recomputed == "everything":
        values = hidden * len(pattern) + max((kept[kind] for kind in pattern), default=0.0)
    return layout.activation * values * layout.padded_tokens / layout.context / layout.tensor


def _values(kind: str, fields: dict[str, Any]) -> float:
    """Values that a layer stores per token."""
    hidden = fields["hidden_size"]
    if kind == "M":
        inner = fields["mamba_num_heads"] * fields["mamba_head_dim"]
        groups = fields["n_groups"] * fields["ssm_state_size"]
        # mamba-ssm stores the output of its first projection, and recomputes convolution and scan
        return 2 * hidden + 3 * inner + 2 * groups + fields["mamba_num_heads"]
    if kind == "*":
        return 2 * hidden + fields["head_dim"] * 2 * (fields["num_attention_heads"] + fields["num_key_value_heads"])
    if kind == "-":
        return 2 * hidden + 2 * fields["intermediate_size"]
    chosen, width = fields.get("num_experts_per_tok", 1), fields["moe_latent_size"] or hidden
    experts = 2 * chosen * (width + fields["moe_intermediate_size"])
    return 2 * hidden + experts + 2 * fields["moe_shared_expert_intermediate_size"]


def _values_of_modules(kind: str, fields: dict[str, Any]) -> float:
    """The same of transformers' modules and our operations for CPUs, counted where autograd keeps them.

    Each layer begins with a norm, which keeps its input in float32, and that divided by its size. A gated MLP has one
    matrix more, and keeps four values for each of its width; `counted` takes its width for 3/2.
    """
    hidden, kept = fields["hidden_size"], 2 * fields["hidden_size"]
    wide = 8 / 3 if fields.get("model_type", NEMOTRON_H) != NEMOTRON_H else 2
    if kind == "M":
        inner, heads = fields["mamba_num_heads"] * fields["mamba_head_dim"], fields["mamba_num_heads"]
        mixed = inner + 2 * fields["n_groups"] * fields["ssm_state_size"]
        states = inner * fields["ssm_state_size"] / SCANNED
        return kept + hidden + inner + mixed + heads + 4 * mixed + 2.5 * inner + 2 * SCANNED * heads + states
    if kind == "*":
        heads, normed = fields["num_attention_heads"], fields["num_attention_heads"] + fields["num_key_value_heads"]
        # keys and values are repeated for each head, and the answer is kept in two orders; norms of them keep two more
        return kept + hidden + fields["head_dim"] * (6 * heads + 2 * normed * fields.get("norms_of_heads", False))
    if kind == "-":
        return kept + hidden + wide * fields["intermediate_size"]
    chosen, width = fields.get("num_experts_per_tok", 1), fields["moe_latent_size"] or hidden
    passing = 2 if wide != 2 else 1  # a row before its experts, and after them where they are gated
    experts = chosen * (passing * width + wide * fields["moe_intermediate_size"])
    return kept + hidden + experts + 2 * fields["moe_shared_expert_intermediate_size"]


def _logits_of_modules(hidden: int, vocab_size: int, layout: Layout) -> float:
    """Logits, their logarithms and slopes, as many as are there at once, and the gradients of the head and of its
    input, which are computed with them."""
    whole, gradients = (
        vocab_size * layout.padded_tokens,
        4 * hidden * (layout.trained * vocab_size + layout.padded_tokens),
    )
    if layout.all_logits:
        return layout.all_logits * layout.activation * whole
    if layout.tiled:
        tokens, width = TILE
        return 4 * TILES * min(layout.padded_tokens, tokens) * min(vocab_size, width) + gradients
    if whole < CHUNKED:
        return 3 * layout.activation * whole
    return 3 * layout.activation * CHUNK + layout.activation / 4 * gradients


def _logits(vocab_size: int, layout: Layout) -> float:
    """Logits and their gradients."""
    return 2 * layout.activation * vocab_size * layout.padded_tokens / layout.context / layout.tensor
