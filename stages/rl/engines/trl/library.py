"""The parts of TRL that we use.

TRL imports every installed experiment tracker, which takes seconds and only serves its own reports;
`nemotron_shared.tracking.trackers` writes ours.
"""

import sys

TRACKERS = ("mlflow", "trackio", "wandb")

_unseen = [name for name in TRACKERS if name not in sys.modules]
for name in _unseen:
    sys.modules[name] = None  # ty: ignore[invalid-assignment]  # makes the package look uninstalled
try:
    from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer
    from trl.trainer.utils import add_fused_lm_head
finally:
    for name in _unseen:
        del sys.modules[name]

__all__ = ["DPOConfig", "DPOTrainer", "GRPOConfig", "GRPOTrainer", "RewardConfig", "RewardTrainer", "add_fused_lm_head"]
