"""The order of an epoch, from its number alone, so that a run can resume anywhere."""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=8)
def order_of_epoch(seed: int, epoch: int, count: int) -> np.ndarray:
    """The numbers from 0 to count - 1, each once."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    order.flags.writeable = False
    return order
