"""Engines of this stage: one folder and one line here each. External packages register theirs as entry points."""

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
