"""What is used of TRL.

It imports every tracker of experiments that is installed, which takes seconds and serves its own reports alone: ours
are written by `nemotron_shared.runtime.trackers`.
"""

import sys

TRACKERS = ("mlflow", "trackio", "wandb")

_unseen = [name for name in TRACKERS if name not in sys.modules]
for name in _unseen:
    sys.modules[name] = None  # ty: ignore[invalid-assignment]  # what looks for such a package finds none
try:
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head
finally:
    for name in _unseen:
        del sys.modules[name]

__all__ = ["GRPOConfig", "GRPOTrainer", "add_fused_lm_head"]
