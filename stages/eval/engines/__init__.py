"""Engines of this stage: one folder and one line here each. External packages register theirs as entry points."""

from nemotron_shared.config.registry import Registry
from nemotron_shared.config.schema import HasSettings

ENGINES: Registry[type[HasSettings]] = Registry(
    kind="engine",
    group="nemotron.engines.eval",
    own={
        "lm_eval": "stages.eval.engines.lm_eval:LMEval",
        "nemo_evaluator": "stages.eval.engines.nemo_evaluator:NemoEvaluator",
        "nemo_evaluator_launcher": "stages.eval.engines.nemo_evaluator_launcher:NemoEvaluatorLauncher",
    },
)
