"""The prompts of each step, their distribution over processes, and the advantages of completions.

Prompts and shares depend on seed and step alone. No generator state carries over between steps, so a resumed run gets
the same prompts as an uninterrupted one, no matter where it stopped and on how many processes.

With `grpo.use_leave_one_out_baseline`, b and s are the mean and standard deviation (over n - 1) of the rewards of the
group's other completions; without it, those of the whole group. The advantage of a completion with reward r is

    (r - b) / (s + 1e-6)     with `grpo.normalize_rewards`, if s is not 0
    r - b                    otherwise

With `grpo.overlong_buffer_length` B and `grpo.overlong_buffer_penalty` P, a completion of n tokens, of at most N, has
its reward r changed beforehand by

    min(0, (N - B - n) / B * P)

Equal rewards are detected before any arithmetic, because the float mean of eight times 0.2 is not always 0.2. Rewards
that differ by rounding alone, as 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 of an episode's turns do, count as equal: a
deviation of 1e-17 would make an advantage of 0.1 one of 100,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemotron_engines.rows import order_of_epoch


@dataclass(frozen=True)
class Batches:
    """The batches of a training. A batch lists each of its prompts once per completion, one prompt after the other."""

    prompts: int  # in the whole set
    per_step: int
    completions: int  # per prompt
    updates: int  # per batch
    seed: int

    def asked(self, step: int) -> list[int]:
        """Indices of the prompts of a step, counted from 0.

        Every epoch is shuffled differently. An epoch may begin within a step, so no prompt is skipped.
        """
        places = range(step * self.per_step, (step + 1) * self.per_step)
        epochs = (divmod(place, self.prompts) for place in places)
        return [int(order_of_epoch(self.seed, epoch, self.prompts)[place]) for epoch, place in epochs]

    def rows_of(self, process: int, processes: int) -> list[int]:
        """Indices of a batch's completions that a process samples and learns from: a share of each update."""
        rows = np.arange(self.per_step * self.completions)
        return rows.reshape(self.updates, processes, -1)[:, process].ravel().tolist()


EPSILON = 1e-6
ROUNDING = 1e-9
"""Differences of rewards up to this share of the largest are due to rounding."""


def advantages_of(rewards: np.ndarray, *, leave_one_out: bool, normalize: bool) -> np.ndarray:
    """Advantages from rewards, both (groups, completions) float64; exactly 0 in groups whose rewards are all equal.

    A completion without a reward (NaN), because its environment failed, gets advantage 0 and is left out of its group.
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


def overlong_penalty(lengths: Sequence[int], most: int, buffer: int, penalty: float) -> np.ndarray:
    """What is added to rewards for the lengths of completions of at most `most` tokens; (completions,) float64."""
    beyond = np.array(lengths, dtype=np.float64) - (most - buffer)
    return np.minimum(0.0, -beyond / buffer * penalty) if buffer else np.zeros(len(lengths))


def mean_and_spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the last axis; equal values give exactly the first and exactly 0."""
    alike = values.max(-1) - values.min(-1) <= ROUNDING * np.abs(values).max(-1)
    mean = np.where(alike, values[..., 0], values.mean(-1))
    squares = ((values - mean[..., None]) ** 2).sum(-1)
    return mean, np.where(alike, 0.0, np.sqrt(squares / max(1, values.shape[-1] - 1)))
