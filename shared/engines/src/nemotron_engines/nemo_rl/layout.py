"""How NeMo-RL distributes a model and its rows over GPUs, for estimates."""

from dataclasses import replace
from typing import Any

from nemotron_engines.estimate.layouts import Layout
from nemotron_engines.nemo_rl.versions import load_bases
from nemotron_engines.overrides import section
from nemotron_shared.config.training import TrainingConfig


def layout(config: TrainingConfig, plain: Layout) -> Layout:
    """The layout in NeMo-RL's own recipe, with `engine.overrides` on top."""
    engine: Any = config.engine
    base = section(load_bases(engine.version)[engine.base].values, "policy")
    above = section(engine.overrides, "policy")
    megatron = {**section(base, "megatron_cfg"), **section(above, "megatron_cfg")}
    tensors = {**section(base, "dtensor_cfg"), **section(above, "dtensor_cfg")}
    by_megatron = bool(megatron.get("enabled"))
    split = megatron if by_megatron else tensors
    return replace(
        plain,
        tensor=split.get("tensor_model_parallel_size" if by_megatron else "tensor_parallel_size", 1),
        pipeline=megatron.get("pipeline_model_parallel_size", 1) if by_megatron else 1,
        context=split.get("context_parallel_size", 1),
        expert=megatron.get("expert_model_parallel_size", 1) if by_megatron else 1,
        gradient=2 if by_megatron else 4,
        shards=not by_megatron,
        recomputed="everything" if split.get("activation_checkpointing") else "nothing",
    )
