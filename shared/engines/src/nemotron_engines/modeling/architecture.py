"""Architectures without torch: the one that `model.architecture` names, parameter counts, and differences.

parameters_in(Path("/models/nano"))                       from the headers of its safetensors
parameters_of(load_architecture("nano3", {}), 131072)     by arithmetic, for random weights
differences(read_json(folder / "config.json"), load_architecture("nano3", {}))
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_data.sources.datasets import own_files
from nemotron_shared.artifacts import Source
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.families import LIKE, architecture
from nemotron_shared.models.weights import Header, header_of
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import UserError

# Facts of a model folder: its number of parameters, and whether it is what a recipe describes.


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
CAPS = ("final_logit_softcapping", "logits_soft_cap")
SCALES = (
    *CAPS, "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_mup_width_multiplier", "logits_scaling",
)  # fmt: skip
"""Fields of transformers' configs (5.23) with which a model changes its logits after the head."""


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


def headers_in(folder: Path) -> Header:
    """The tensors of a model folder, from the headers of its safetensors; empty if it has none.

    Raises:
        UserError: a file is not a safetensors file.
    """
    found: Header = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= header_of(str(file), file, whole=False)  # input checks verify that it is complete
    return found


def parameters_in(folder: Path) -> Parameters | None:
    """Parameters of a model folder, as `headers_in`; None if it has no such tensors."""
    found = headers_in(folder)
    if not found:
        return None
    sizes = {name: math.prod(one.shape) for name, one in found.items()}
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


LAYERS = ("hybrid_override_pattern", "mtp_hybrid_override_pattern")
SIZES = (*DEFAULTS, "vocab_size", "num_hidden_layers", "max_position_embeddings")


def own_file(name_or_path: str) -> str | None:
    """The path, if an architecture is the user's own file instead of a name."""
    return name_or_path if name_or_path.endswith((".yaml", ".yml")) else None


def own_sources(config: Any) -> list[Source]:
    """Manifest entries for the user's own files that a training or an evaluation reads besides its artifacts."""
    return own_files(own_file(config.model.architecture), *config.engine.own_files())


def own_architecture(config: Any) -> dict[str, Any]:
    """The fields of a config's architecture, on which a result depends more than on its name."""
    return {"model.architecture": load_architecture(config.model.architecture, {})}


def load_architecture(name_or_path: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fields of an architecture by name (`nano3`, `super3_tiny`) or from the user's own YAML file.

    Raises:
        UserError: unknown architecture, its file is not a mapping, or a size or pattern is invalid.
    """
    if own_file(name_or_path) is None:
        return _checked(f"model.architecture={name_or_path}", architecture(name_or_path) | overrides)
    path = Path(name_or_path)
    fields = parsed(path, read_text(path))
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise UserError(f"{path}: not a mapping of NemotronHConfig fields", "write one NAME: VALUE per line")
    if LIKE in fields:
        what = f"{path}: '{LIKE}' only works in a family's architecture"
        raise UserError(what, "list all fields, or define a family: docs/families.md")
    return _checked(str(path), fields | overrides)


def _checked(place: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Check the sizes and the layer pattern, from which everything else is computed."""
    for name, value in fields.items():
        if name in LAYERS and value is not None and not (isinstance(value, str) and re.fullmatch(r"[ME*-]*", value)):
            what = f"{place}: {name} is {str(value)[:80]!r}, not a pattern of layers"
            raise UserError(what, "use M for Mamba-2, E for a mixture of experts, * for attention, - for a plain MLP")
        may_be_null = name in DEFAULTS and DEFAULTS[name] is None
        is_size = (type(value) is int and value >= 0) or (value is None and may_be_null)
        if name in SIZES and not is_size:
            raise UserError(f"{place}: {name} is {str(value)[:80]!r}, not a size", "use a whole number")
    return fields


# The architecture of a training, as fields of NemotronHConfig.


KINDS = {"linear_attention": "M", "mamba": "M", "moe": "E", "full_attention": "*", "attention": "*", "mlp": "-"}
UNIFORM: dict[str, dict[str, Any]] = {
    "super49b": {
        "hybrid_override_pattern": "*-" * 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 27_237, "vocab_size": 128_256,
    }
}  # fmt: skip
"""Models whose layers differ in width, described by equal layers with the same total of parameters (49.9B)."""


def fields_of(config: TrainingConfig, inputs: Inputs) -> dict[str, Any] | None:
    """Fields of the starting model or of the architecture; None without a known layer pattern."""
    model = inputs.get("model")
    file = model.path / "config.json" if model is not None else None
    if file is not None and file.is_file():
        fields = read_json(file)
        kinds = fields.get("layers_block_type")
        if kinds and all(kind in KINDS for kind in kinds):
            fields["hybrid_override_pattern"] = "".join(KINDS[kind] for kind in kinds)
    else:
        section: Any = config.model
        fields = UNIFORM.get(section.architecture) or load_architecture(section.architecture, section.overrides)
    known = fields.get("model_type", NEMOTRON_H) == NEMOTRON_H and isinstance(
        fields.get("hybrid_override_pattern"), str
    )
    return fields if known else None
