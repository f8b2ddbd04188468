"""Engines of this stage: a folder each, and a line here. Packages from outside list theirs as entry points."""

from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings

ENGINES: Registry[type[HasSettings]] = Registry(
    kind="engine",
    group="nemotron.engines.rl",
    own={
        "trl": "stages.rl.engines.trl:TRL",
        "nemo_rl": "stages.rl.engines.nemo_rl:NeMoRL",
    },
)
