"""How much better a completion did than those it is compared with, in float64.

With `grpo.use_leave_one_out_baseline`, b and s are mean and standard deviation (over n - 1) of the rewards of the other
completions of the group, without it those of the whole group. The advantage of a completion with the reward r is

    (r - b) / (s + 1e-6)     with `grpo.normalize_rewards`, where s is not 0
    r - b                    otherwise

Rewards that are equal are compared before anything is computed of them: the mean of eight times 0.2 is not always 0.2.
"""

import numpy as np

EPSILON = 1e-6


def advantages_of(rewards: np.ndarray, *, leave_one_out: bool, normalize: bool) -> np.ndarray:
    """The advantages of rewards, both (groups, completions) float64; exactly 0 throughout a group of one reward."""
    groups, size = rewards.shape
    compared = np.broadcast_to(rewards[:, None], (groups, size, size))
    if leave_one_out:
        compared = compared[:, ~np.eye(size, dtype=bool)].reshape(groups, size, size - 1)
    baseline, spread = mean_and_spread(compared)
    advantages = rewards - baseline
    return advantages / np.where(spread > 0, spread + EPSILON, 1.0) if normalize else advantages


def mean_and_spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the last axis; of equal values exactly this value, and exactly 0."""
    alike = values.max(-1) == values.min(-1)
    mean = np.where(alike, values[..., 0], values.mean(-1))
    squares = ((values - mean[..., None]) ** 2).sum(-1)
    return mean, np.where(alike, 0.0, np.sqrt(squares / max(1, values.shape[-1] - 1)))
