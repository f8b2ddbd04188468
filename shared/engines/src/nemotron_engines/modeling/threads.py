"""CPU threads."""

import os

import torch


def set_threads(threads: int | None) -> None:
    """Use the configured number of threads; None leaves the choice to torch.

    Tiny models need one: a second gains nothing, and on a busy machine it was measured four times slower.
    """
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # otherwise accelerate uses one thread per core
