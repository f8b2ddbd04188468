"""Which prompts a step asks, which process samples which of their completions, and how much better each one did than
those it is compared with.

Prompts and shares are known by seed and step alone. Nothing is drawn step by step, so a run goes on with the prompts of
an uninterrupted one, wherever and on however many processes it was stopped.

With `grpo.use_leave_one_out_baseline`, b and s are mean and standard deviation (over n - 1) of the rewards of the other
completions of the group, without it those of the whole group. The advantage of a completion with the reward r is

    (r - b) / (s + 1e-6)     with `grpo.normalize_rewards`, where s is not 0
    r - b                    otherwise

Rewards that are equal are compared before anything is computed of them: the mean of eight times 0.2 is not always 0.2.
"""

from dataclasses import dataclass

import numpy as np

from nemotron_engines.rows.order import order_of_epoch


@dataclass(frozen=True)
class Batches:
    """The batches of a training. A batch is so many prompts, each as often as it has completions, one after another."""

    prompts: int  # of the whole set
    per_step: int
    completions: int  # of a prompt
    updates: int  # that a batch is shared out to
    seed: int

    def asked(self, step: int) -> list[int]:
        """Numbers of the prompts of a step, the first of which is step 0.

        Every epoch has an order of its own. The next one begins where one ends, also within a step, so that an epoch
        leaves no prompt out.
        """
        places = range(step * self.per_step, (step + 1) * self.per_step)
        epochs = (divmod(place, self.prompts) for place in places)
        return [int(order_of_epoch(self.seed, epoch, self.prompts)[place]) for epoch, place in epochs]

    def rows_of(self, process: int, processes: int) -> list[int]:
        """Numbers of the completions of a batch that a process samples and learns from: a share of each update."""
        rows = np.arange(self.per_step * self.completions)
        return rows.reshape(self.updates, processes, -1)[:, process].ravel().tolist()


EPSILON = 1e-6


def advantages_of(rewards: np.ndarray, *, leave_one_out: bool, normalize: bool) -> np.ndarray:
    """The advantages of rewards, both (groups, completions) float64; exactly 0 throughout a group of one reward.

    A completion without a reward (NaN), whose environment failed, has the advantage 0 and is compared with nothing.
    """
    if np.isnan(rewards).any():
        found = np.zeros_like(rewards)
        for group, there in enumerate(~np.isnan(rewards)):
            if there.sum() > 1:
                rest = rewards[group : group + 1, there]
                found[group, there] = advantages_of(rest, leave_one_out=leave_one_out, normalize=normalize)
        return found
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
