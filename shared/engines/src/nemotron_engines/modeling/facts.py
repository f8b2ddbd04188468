"""Facts about a model without torch: its parameter count, and whether it matches a recipe.

parameters_in(Path("/models/nano"))                       from the headers of its safetensors
parameters_of(load_architecture("nano3", {}), 131072)     by arithmetic, for random weights
differences(read_json(folder / "config.json"), load_architecture("nano3", {}))
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_shared.runtime.models.weights import shapes_of

NEMOTRON_H = "nemotron_h"
HETEROGENEOUS = "nemotron-nas"
"""A model whose layers differ in kind and width, such as Llama 3.3 Nemotron Super 49B."""
PATTERNS = ("hybrid_override_pattern", "layers_block_type")
COMPARED = ("hidden_size", "num_attention_heads", "mamba_num_heads", "n_routed_experts", "moe_intermediate_size")
# NemotronHConfig's defaults, for user architectures that leave fields out.
DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "n_routed_experts": 8,
    "intermediate_size": 21504, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
}  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """Parameter counts: total, in routed experts (which other processes may hold), and the number of tensors in a
    folder."""

    total: int
    experts: int = 0
    tensors: int = 0


def parameters_of(fields: dict[str, Any], vocab_size: int) -> Parameters:
    """Parameters of a NemotronH model with random weights; 0 without a layer pattern."""
    fields = DEFAULTS | fields
    hidden, layers = fields["hidden_size"], fields.get("hybrid_override_pattern")
    if not isinstance(layers, str):
        return Parameters(0)
    inner = fields["mamba_num_heads"] * fields["mamba_head_dim"]
    states = 2 * fields["n_groups"] * fields["ssm_state_size"]
    convolved = inner + states
    mamba = hidden * (2 * inner + states + fields["mamba_num_heads"])  # in_proj
    mamba += convolved * (fields["conv_kernel"] + 1) + 3 * fields["mamba_num_heads"] + inner + inner * hidden
    heads = fields["head_dim"] * (2 * fields["num_attention_heads"] + 2 * fields["num_key_value_heads"])
    latent = fields["moe_latent_size"]
    experts = fields["n_routed_experts"] * 2 * (latent or hidden) * fields["moe_intermediate_size"]
    beside = hidden * fields["n_routed_experts"] + 2 * hidden * fields["moe_shared_expert_intermediate_size"]
    sizes = {"M": mamba, "*": hidden * heads, "E": experts + beside + 2 * hidden * (latent or 0)}
    sizes["-"] = 2 * hidden * fields["intermediate_size"]
    predicting = fields.get("mtp_hybrid_override_pattern", "") if fields.get("num_nextn_predict_layers") else ""
    blocks = layers + predicting
    total = sum(sizes.get(kind, 0) + hidden for kind in blocks) + hidden + 2 * vocab_size * hidden
    return Parameters(total, experts * blocks.count("E"))


def parameters_in(folder: Path) -> Parameters | None:
    """Parameters of a model folder, from the headers of its safetensors; None if it has none.

    Raises:
        UserError: a file is not a safetensors file.
    """
    shapes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        shapes |= shapes_of(str(file), file, whole=False)  # input checks verify that it is complete
    if not shapes:
        return None
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    in_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return Parameters(sum(sizes.values()), in_experts, len(sizes))


def differences(config: dict[str, Any], fields: dict[str, Any]) -> list[str]:
    """Differences in kind and size between a model's config.json and an architecture."""
    wanted_kind, kind = fields.get("model_type", NEMOTRON_H), config.get("model_type")
    if kind != wanted_kind:
        return [f"model_type {kind} instead of {wanted_kind}"]
    pairs = {"layers": (_layers(config), _layers(fields))}
    pairs |= {name: (config.get(name), fields[name]) for name in COMPARED if name in fields}
    found = [f"{name} {found} instead of {wanted}" for name, (found, wanted) in pairs.items() if found != wanted]
    if kind == HETEROGENEOUS and not config.get("block_configs"):
        found.append("config.json has no block_configs, which describe its layers")
    return found


def _layers(fields: dict[str, Any]) -> int | None:
    pattern = next((fields[name] for name in PATTERNS if fields.get(name)), None)
    return len(pattern) if pattern else fields.get("num_hidden_layers")
