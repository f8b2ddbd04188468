"""Learning rate over steps, as a share of the peak.

warmup, then one of:  constant ─────   linear ╲   cosine ╰╮   WSD ────╲
"""

import math
from collections.abc import Callable

from nemotron_shared.config.training import OptimizerSection, SchedulerSection


def learning_rate_factor(
    optimizer: OptimizerSection, scheduler: SchedulerSection, train_iters: int
) -> Callable[[int], float]:
    """A function from the step (0 for the first) to the factor on `optimizer.lr`."""
    floor = optimizer.min_lr / optimizer.lr
    scheduler = scheduler.fitted(train_iters)
    warmup = scheduler.lr_warmup_iters

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = (step - warmup) / (train_iters - warmup)
        if scheduler.lr_decay_style == "WSD":
            decay_from = train_iters - scheduler.lr_wsd_decay_iters
            progress = max(0.0, (step - decay_from) / max(1, scheduler.lr_wsd_decay_iters))
        # remaining share of the peak above the floor after `progress` (0 to 1) of the decay
        progress = min(1.0, progress)
        left = {
            "constant": 1.0,
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "WSD": 1 - math.sqrt(progress),
            "linear": 1 - progress,
        }[scheduler.lr_decay_style]
        return floor + (1 - floor) * left

    return factor
