"""Which prompts a step asks, and which process samples which of their completions: by seed and step alone.

Nothing is drawn step by step, so a run goes on with the prompts of an uninterrupted one, wherever and on however many
processes it was stopped.
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
