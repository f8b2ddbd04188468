"""The architecture of a training's model, as fields of NemotronHConfig."""

from typing import Any

from nemotron_engines.modeling.architecture import load_architecture
from nemotron_engines.modeling.facts import NEMOTRON_H
from nemotron_shared.atomic import read_json
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.runtime.engine import Inputs

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
