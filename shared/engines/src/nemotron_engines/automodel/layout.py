"""How Automodel distributes a model and its rows over GPUs, for estimates."""

from dataclasses import replace
from typing import Any

from nemotron_engines.estimate.layouts import Layout
from nemotron_shared.config.training import TrainingConfig


def layout(config: TrainingConfig, plain: Layout) -> Layout:
    engine: Any = config.engine
    size, frozen = 2 if engine.weights_dtype == "bfloat16" else 4, engine.peft is not None
    return replace(
        plain,
        tensor=engine.tp_size,
        context=engine.cp_size,
        expert=engine.ep_size,
        weight=size,
        gradient=0 if frozen else size,
        optimizer=0 if frozen else 2 * size,
        shards=engine.strategy == "fsdp2",
        spread=engine.strategy == "fsdp2",
        trained=not frozen,
        recomputed="everything" if engine.activation_checkpointing else "nothing",
        activation=2 if engine.dtype == "bfloat16" else 4,
    )
