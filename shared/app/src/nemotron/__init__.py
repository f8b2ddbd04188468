"""Train, fine-tune, evaluate and ask models from Python: the commands of `nemotron` as functions; see docs/notebook.md.

import nemotron
tuned = nemotron.train("sft", "tiny", {"optimizer.lr": 1e-3})
tuned.metrics.to_pandas().plot(x="step", y="loss")
"""

from nemotron_app.notebook.artifacts import Artifact, artifact, artifacts
from nemotron_app.notebook.functions import (
    Answer,
    FineTuning,
    ask,
    dry_run,
    evaluate,
    finetune,
    prepare,
    train,
)
from nemotron_app.notebook.interval import Interval, interval
from nemotron_shared.system.errors import UserError

__all__ = [
    "Answer",
    "Artifact",
    "FineTuning",
    "Interval",
    "UserError",
    "artifact",
    "artifacts",
    "ask",
    "dry_run",
    "evaluate",
    "finetune",
    "interval",
    "prepare",
    "train",
]
