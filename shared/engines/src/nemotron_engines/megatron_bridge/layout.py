"""How Megatron-Bridge distributes a model and its rows over GPUs, for estimates."""

from dataclasses import replace
from typing import Any

from nemotron_engines.estimate.layouts import Layout
from nemotron_engines.megatron_bridge.needs import known_width, optimizer_bytes
from nemotron_engines.overrides import section
from nemotron_shared.config.training import TrainingConfig

UNKNOWN = "memory: this recipe's optimizer is unknown; assuming the maximum of 12 bytes per parameter"


def layout(config: TrainingConfig, plain: Layout) -> Layout:
    engine: Any = config.engine
    frozen, small = engine.peft.scheme is not None, engine.mixed_precision is not None
    model, precision = section(engine.overrides, "model"), section(engine.overrides, "mixed_precision")
    reduced_in_32_bits = precision.get("grad_reduce_in_fp32", True) or not small
    experts = engine.recipe is not None or "moe" in (model.get("recompute_modules") or [])
    return replace(
        plain,
        tensor=engine.tensor_model_parallel_size,
        pipeline=engine.pipeline_model_parallel_size,
        context=engine.context_parallel_size,
        expert=engine.expert_model_parallel_size * engine.expert_tensor_parallel_size,
        weight=2 if small else 4,
        gradient=0 if frozen else 4 if reduced_in_32_bits else 2,
        optimizer=0 if frozen else optimizer_bytes(engine),
        trained=not frozen,
        recomputed="everything"
        if model.get("recompute_granularity") == "full"
        else "experts"
        if experts
        else "nothing",
        activation=2 if small else 4,
        assumed=() if frozen or known_width(engine.recipe) else (UNKNOWN,),
    )
