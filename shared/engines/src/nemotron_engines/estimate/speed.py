"""Seconds of a step: what a token of a NemotronH model costs, and what a device can do.

Three coefficients say how much longer a GPU takes than its data sheet promises: for operations, for bytes moved, and
for the fixed cost of each layer in each pass (starting kernels, routing, synchronisation). `benchmarks/plan.py` fits
them to the runs that NVIDIA publishes for these models. Those show no difference between 8-bit, 4-bit and 16-bit runs
beyond what these three explain, so precision has no coefficient.
"""

from dataclasses import dataclass
from typing import Any

from nemotron_engines.estimate.memory import Layout
from nemotron_engines.modeling.architecture import DEFAULTS
from nemotron_shared.machine.machine import CORE_OPERATIONS, Device

# What one token of a NemotronH model costs in training, from the fields of its architecture.


BACKWARD = 3
"""A forward and a backward pass, in forward passes: the gradients of inputs and of weights cost one each."""
FROZEN_BACKWARD = 2
"""The same with frozen weights: only the gradients of inputs."""


@dataclass(frozen=True)
class Work:
    """Cost of one token.

    Attributes:
        operations: floating-point operations of the matrices, of attention and of the scan, a multiplication and an
            addition being two; `traffic` bytes that the steps between them read and write, in 16 bits.
        layers: that the token passes, those of multi-token prediction included.
    """

    operations: float
    traffic: float
    layers: int


def work_of(
    fields: dict[str, Any], vocab_size: int, seq_length: int, *, predictions: int = 0, frozen: bool = False
) -> Work:
    """The work of a token in a row of `seq_length`; attention sees half of the row on average.

    Args:
        predictions: passes of the block that predicts further tokens (attention and experts), each with the head.
        frozen: adapters are trained, and the weights are frozen.
    """
    fields = DEFAULTS | fields
    pattern, hidden = fields["hybrid_override_pattern"], fields["hidden_size"]
    forward = {kind: _operations(kind, fields, seq_length) for kind in "M*E-"}
    head = 2 * vocab_size * hidden
    again = predictions * (forward["*"] + forward["E"] + 4 * hidden * hidden + head)
    passes = FROZEN_BACKWARD if frozen else BACKWARD
    layers = len(pattern) + 2 * predictions
    moved = 6 * hidden * layers + sum(_moved(kind, fields) for kind in pattern + "*E" * predictions)
    return Work(
        operations=passes * (sum(forward[kind] for kind in pattern) + head + again),
        traffic=2 * BACKWARD * moved,
        layers=layers,
    )


def active_parameters(fields: dict[str, Any], total: int, experts: int) -> int:
    """Active parameters per token: `num_experts_per_tok` of the routed experts, and everything else."""
    fields = DEFAULTS | fields
    return total - experts + experts * fields.get("num_experts_per_tok", 1) // max(1, fields["n_routed_experts"])


def _operations(kind: str, fields: dict[str, Any], seq_length: int) -> float:
    """Operations of a layer's forward pass."""
    hidden = fields["hidden_size"]
    if kind == "M":
        inner = fields["mamba_num_heads"] * fields["mamba_head_dim"]
        groups, state = fields["n_groups"] * fields["ssm_state_size"], fields["ssm_state_size"]
        projections = 2 * hidden * (2 * inner + 2 * groups + fields["mamba_num_heads"]) + 2 * inner * hidden
        return projections + 2 * fields.get("chunk_size", 128) * (groups + inner) + 4 * inner * state
    if kind == "*":
        heads = fields["head_dim"] * fields["num_attention_heads"]
        projections = 4 * hidden * (heads + fields["head_dim"] * fields["num_key_value_heads"])
        return projections + 2 * seq_length * heads
    if kind == "-":
        return 4 * hidden * fields["intermediate_size"]
    latent = fields["moe_latent_size"]
    experts = fields.get("num_experts_per_tok", 1) * 4 * (latent or hidden) * fields["moe_intermediate_size"]
    shared = 4 * hidden * fields["moe_shared_expert_intermediate_size"]
    return experts + shared + 2 * hidden * fields["n_routed_experts"] + 4 * hidden * (latent or 0)


def _moved(kind: str, fields: dict[str, Any]) -> float:
    """Values that a layer's forward pass reads and writes besides its matrices: Mamba's convolution, scan and gate;
    expert dispatch and combine, and their activations."""
    if kind == "M":
        return 8 * fields["mamba_num_heads"] * fields["mamba_head_dim"]
    if kind != "E":
        return 0
    chosen, width = fields.get("num_experts_per_tok", 1), fields["moe_latent_size"] or fields["hidden_size"]
    return 4 * chosen * (width + fields["moe_intermediate_size"]) + 4 * fields["moe_shared_expert_intermediate_size"]


OPERATIONS, TRAFFIC, LAYER_SECONDS = 1.906, 1.295, 2.666e-3
PARTS = ("operations", "memory traffic", "fixed cost of layers")


def terms(work: Work, device: Device, layout: Layout) -> tuple[float, float, float]:
    """Seconds per token and GPU, before the coefficients.

    `layout.tensor` GPUs wait together for the fixed cost of each layer, and a pass of `layout.micro_tokens` shares it.
    """
    return (
        work.operations / device.operations,
        work.traffic / device.bandwidth,
        work.layers * layout.tensor * layout.context / layout.micro_tokens,
    )


def step_seconds(work: Work, device: Device, layout: Layout, tokens: int) -> dict[str, float]:
    """Seconds of one optimizer step of `tokens` over all GPUs, by part."""
    coefficients = (OPERATIONS, TRAFFIC, LAYER_SECONDS)
    each = tokens / layout.devices
    passed = dict(
        zip(PARTS, (a * b * each for a, b in zip(coefficients, terms(work, device, layout), strict=True)), strict=True)
    )
    idle = (layout.pipeline - 1) / max(1, layout.passes)
    return passed | {"pipeline bubble": idle * sum(passed.values())}


def core_seconds(work: Work, cores: int, tokens: int) -> dict[str, float]:
    """Seconds of one step on a CPU with one process per core."""
    return {"all": work.operations * tokens / cores / CORE_OPERATIONS}


RL_OPERATIONS, RL_BANDWIDTH = 75e9, 0.61e9
RL_LAYER, RL_EXACT_LAYER, RL_PASS = 0.75e-3, 1.25e-3, 4.2e-3
"""Of one core of an AMD EPYC in float32: operations a second in matrices, bytes a second between them, and the fixed
costs of a layer: for each token that is drawn, for all rows at once, with transformers' `generate` and with exact
sampling, and for each pass over whole rows. `benchmarks/rl_time.py` measures what they are fitted to."""
LEARNT = 0.5
"""Share of the completions of GRPO with an advantage, and so with a backward pass."""


@dataclass(frozen=True)
class Rollout:
    """What one process does in a step of reinforcement learning.

    Attributes:
        rows: completions, or pairs of answers; `row_tokens` of one, with its prompt.
        drawn: tokens of a completion; 0 for pairs, which are given.
        exact: they are drawn by the computation that trains.
        forward, backward: passes over all tokens besides those that draw them, in forward passes.
        passes: into which the rows are split.
    """

    rows: int
    row_tokens: float
    drawn: int
    exact: bool
    forward: float
    backward: float
    passes: int


def core_rl_seconds(work: Work, rollout: Rollout, *, passes_of_work: int) -> dict[str, float]:
    """Seconds of a step of reinforcement learning on one core, by part.

    Args:
        passes_of_work: in how many forward passes `work.operations` are counted.
    """
    token = work.operations / passes_of_work / RL_OPERATIONS + work.traffic / BACKWARD / RL_BANDWIDTH
    tokens, times = rollout.rows * rollout.row_tokens, rollout.forward + rollout.backward
    seconds = {"training": times * (tokens * token + rollout.passes * work.layers * RL_PASS)}
    if rollout.drawn:
        layer = RL_EXACT_LAYER if rollout.exact else RL_LAYER
        seconds["generation"] = tokens * token + work.layers * (RL_PASS + rollout.drawn * layer)
    return seconds
