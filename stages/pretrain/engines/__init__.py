"""Engines of this stage: a folder each, and a line here. Packages from outside list theirs as entry points."""

from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings

ENGINES: Registry[type[HasSettings]] = Registry(
    kind="engine",
    group="nemotron.engines.pretrain",
    own={
        "transformers": "stages.pretrain.engines.transformers:Transformers",
        "megatron_bridge": "stages.pretrain.engines.megatron_bridge:MegatronBridge",
        "automodel": "stages.pretrain.engines.automodel:Automodel",
    },
)
