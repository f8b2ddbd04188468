"""Whether a model can be split as a layout says. The rules are Megatron-Core's own, which it would only apply on the
GPUs: TransformerConfig, MambaMixer, the linear layers, the MoE layer and HybridModel check them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.modeling.facts import DEFAULTS
from nemotron_engines.overrides import section
from nemotron_shared.runtime.needs import Problem

UNEVEN = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "hybrid_layer_pattern",
)  # fmt: skip
UNEVEN_RECIPES = ("nemotron_3_super_sft_16gpu_h100_bf16_32k_config",)
"""They put another number of layers into one stage themselves."""
MOST = 1024


class Rule(NamedTuple):
    """What a size must fit: `fits(count, size)`; `what` names the count, `field` is Megatron's name of it."""

    what: str
    count: int
    field: str
    fits: Callable[[int, int], bool] = lambda count, size: count % size == 0


def split_problems(engine: MegatronBridgeEngine, fields: Mapping[str, Any]) -> Iterator[Problem]:
    """One for each size of the layout that the model's layers cannot be split into.

    Args:
        fields: of the architecture, as Hugging Face names them.
    """
    model = section(engine.overrides, "model")
    for key, rules in _rules(engine, DEFAULTS | dict(fields), model).items():
        asked = [rule for rule in rules if rule.count and rule.field not in model]
        size = getattr(engine, key)
        broken = [rule for rule in asked if not rule.fits(rule.count, size)]
        if broken:
            valid = [str(one) for one in range(1, MOST) if all(rule.fits(rule.count, one) for rule in asked)]
            counts = ", ".join(f"{rule.count} {rule.what}" for rule in broken)
            what = f"Megatron cannot split the model's {counts} into {size} parts"
            yield Problem(what, f"set engine.{key} to one of {', '.join(valid)}", f"engine.{key}")


def _rules(engine: MegatronBridgeEngine, fields: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, list[Rule]]:
    """By the setting that they are about."""
    pattern = fields["hybrid_override_pattern"]
    tensor = [
        Rule("attention heads", fields["num_attention_heads"], "num_attention_heads"),
        Rule("key-value heads", fields["num_key_value_heads"], "num_query_groups", _either_divides),
    ]
    if "M" in pattern:
        tensor.append(Rule("Mamba heads", fields["mamba_num_heads"], "mamba_num_heads"))
        tensor.append(Rule("Mamba groups", fields["n_groups"], "mamba_num_groups"))
    rules = {"tensor_model_parallel_size": tensor}
    if "E" in pattern:
        rules["expert_model_parallel_size"] = [Rule("routed experts", fields["n_routed_experts"], "num_moe_experts")]
    recipe = (engine.recipe or "").rpartition(".")[2]
    if recipe not in UNEVEN_RECIPES and not any(model.get(name) for name in UNEVEN):
        rules["pipeline_model_parallel_size"] = [Rule("layers", len(pattern), "num_layers")]
    return rules


def _either_divides(count: int, size: int) -> bool:
    """A key-value head may also lie on several processes."""
    return count % size == 0 or size % count == 0
