"""How many bytes Megatron-Bridge's optimizer keeps of each parameter: float32 weights and two moments, or smaller ones
where the recipe says so."""

from fnmatch import fnmatch

from nemotron_engines.megatron_bridge.settings import MegatronBridgeEngine
from nemotron_engines.overrides import section

PARTS = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}
# Bytes of each of the three parts, by the recipe's function: the first that fits. From `cfg.optimizer` in
# megatron/bridge/recipes/nemotronh of Megatron-Bridge 067f987d: only Super's pretraining and SFT for H100 set
# use_precision_aware_optimizer, with float16 weights and bfloat16 moments.
RECIPES = {
    "nemotron_3_super_*gb200*": 4,
    "nemotron_3_super_pretrain_*": 2,
    "nemotron_3_super_sft_*": 2,
    "nemotron_3_super_peft_*": 4,
    "nemotron_3_nano_*": 4,
    "nemotron_3_5_lightning_*": 4,
    "nemotron_3_ultra_*": 4,
}


def optimizer_bytes(engine: MegatronBridgeEngine, *, unknown: int = 4) -> int:
    """Of each parameter that is trained; `unknown` are those of each part where nothing is known of the recipe."""
    if engine.mixed_precision is None:
        return 8  # the weights themselves are float32
    known = known_width(engine.recipe)
    usual = unknown if known is None else known
    asked = section(engine.overrides, "optimizer")
    if asked.get("use_precision_aware_optimizer") is False:
        return 12
    return sum(WIDTHS.get(str(asked.get(part)).removeprefix("torch."), usual) for part in PARTS)


def known_width(recipe: str | None) -> int | None:
    """Bytes of each of the three parts; None for a recipe that is not in the table."""
    if recipe is None:
        return 4
    function = recipe.rpartition(".")[2]
    return next((width for pattern, width in RECIPES.items() if fnmatch(function, pattern)), None)
