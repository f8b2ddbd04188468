"""Engines of this stage: a folder each, and a line here. Packages from outside list theirs as entry points."""

from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings

ENGINES: Registry[type[HasSettings]] = Registry(
    kind="engine",
    group="nemotron.engines.sft",
    own={
        "transformers": "stages.sft.engines.transformers:Transformers",
        "megatron_bridge": "stages.sft.engines.megatron_bridge:MegatronBridge",
        "automodel": "stages.sft.engines.automodel:Automodel",
        "nemo_rl": "stages.sft.engines.nemo_rl:NeMoRL",
    },
)
