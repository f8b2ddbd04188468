"""Peak memory of one GPU, by part."""

from typing import Any

from nemotron_engines.estimate.layouts import Layout
from nemotron_engines.modeling.facts import DEFAULTS, Parameters

CONTEXT_BYTES = 4 * 10**9
"""Memory of a GPU process besides its tensors: CUDA context, kernels, communication buffers."""

PROCESS_BYTES = 7 * 10**8
"""Memory of a CPU process besides its tensors: Python with torch and transformers. Measured with the tiny trainings;
RL takes 0.2 GB more."""


def memory_parts(
    fields: dict[str, Any], vocab_size: int, parameters: Parameters, layout: Layout, *, on_gpu: bool
) -> dict[str, float]:
    """Weights, gradients, optimizer, activations, logits, and the overhead of a process."""
    dense, experts = parameters.total - parameters.experts, parameters.experts
    own = dense / layout.tensor / layout.pipeline + experts / layout.expert / layout.pipeline
    everything = parameters.total / layout.devices
    held = everything if layout.shards else own
    whole = _largest_layer(fields, parameters) if layout.shards and layout.devices > 1 else 0
    activations, logits = _activations(fields, layout), _logits(vocab_size, layout)
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


def _activations(fields: dict[str, Any], layout: Layout) -> float:
    """Activations that the forward pass stores for the backward pass.

    A pipeline's first stage stores as many passes as there are stages, each for its share of the layers.
    """
    pattern, hidden = (DEFAULTS | fields)["hybrid_override_pattern"], fields["hidden_size"]
    kept = {kind: _values(kind, DEFAULTS | fields) for kind in "M*E-"}
    if layout.recomputed == "experts":
        kept["E"] = hidden
    values = sum(kept[kind] for kind in pattern)
    if layout.recomputed == "everything":
        values = hidden * len(pattern) + max(kept[kind] for kind in set(pattern))
    return layout.activation * values * layout.micro_tokens / layout.context / layout.tensor


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


def _logits(vocab_size: int, layout: Layout) -> float:
    """Logits and their gradients."""
    return 2 * layout.activation * vocab_size * layout.micro_tokens / layout.context / layout.tensor
