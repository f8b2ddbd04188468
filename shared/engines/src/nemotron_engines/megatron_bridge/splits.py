"""Whether a model can be split as a layout says. The rules are Megatron-Core's own, which it would only apply on the
GPUs: TransformerConfig, MambaMixer and its context parallelism, the linear layers, the MoE layer and HybridModel check
them."""

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


def split_problems(
    engine: MegatronBridgeEngine, fields: Mapping[str, Any], seq_length: int | None = None
) -> Iterator[Problem]:
    """One for each size of the layout that the model's layers cannot be split into.

    Args:
        fields: of the architecture, as Hugging Face names them.
        seq_length: tokens of a row; None where the data decides.
    """
    model, fields = section(engine.overrides, "model"), DEFAULTS | dict(fields)
    tensor, experts = engine.tensor_model_parallel_size, "E" in fields["hybrid_override_pattern"]
    if experts and tensor > 1 and not engine.sequence_parallel and "sequence_parallel" not in model:
        what = f"Megatron trains experts beside engine.tensor_model_parallel_size={tensor} in sequence parallel only"
        yield Problem(what, "set engine.sequence_parallel=true", "engine.sequence_parallel")
    for key, rules in (_rules(engine, fields, model) | _context_rules(engine, fields, seq_length)).items():
        asked = [rule for rule in rules if rule.count and rule.field not in model]
        size = getattr(engine, key)
        broken = [rule for rule in asked if not rule.fits(rule.count, size)]
        if broken:
            valid = [str(one) for one in range(1, MOST) if all(rule.fits(rule.count, one) for rule in asked)]
            counts = ", ".join(f"{rule.count} {rule.what}" for rule in broken)
            what = f"Megatron cannot split the model's {counts} into {size} parts"
            yield Problem(what, f"set engine.{key} to one of {', '.join(valid)}", f"engine.{key}")


def unpadded(engine: MegatronBridgeEngine) -> Iterator[Problem]:
    """Why packed rows cannot be shared out over the context."""
    if engine.context_parallel_size > 1:
        multiple = 2 * engine.context_parallel_size
        what = f"engine.context_parallel_size > 1 needs every packed sequence padded to a multiple of {multiple}"
        remedy = "set engine.context_parallel_size=1"
        yield Problem(f"{what}; data preparation does not pad", remedy, "engine.context_parallel_size")


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


def _context_rules(
    engine: MegatronBridgeEngine, fields: Mapping[str, Any], seq_length: int | None
) -> dict[str, list[Rule]]:
    """A row is cut into two pieces for each process; the heads of a tensor part are shared out in Mamba layers."""
    tensor, rules = engine.tensor_model_parallel_size, []
    if seq_length:
        rules.append(Rule("tokens of a row (in 2 pieces for each part)", seq_length, "seq_length", _in_two_pieces))
    if "M" in fields["hybrid_override_pattern"] and not fields["mamba_num_heads"] % tensor:
        rules.append(Rule("Mamba heads of a tensor part", fields["mamba_num_heads"] // tensor, "mamba_num_heads"))
        groups = fields["n_groups"] // tensor
        rules.append(Rule("Mamba groups of a tensor part", groups, "mamba_num_groups", _either_divides))
    return {"context_parallel_size": rules}


def _in_two_pieces(tokens: int, size: int) -> bool:
    """Megatron gives each process an early and a late piece, which take equally long."""
    return size == 1 or tokens % (2 * size) == 0


def _either_divides(count: int, size: int) -> bool:
    """A key-value head may also lie on several processes."""
    return count % size == 0 or size % count == 0
