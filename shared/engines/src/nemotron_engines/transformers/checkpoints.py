"""The Trainer's checkpoints: required files, size, and safe saving."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import disk, distributed
from nemotron_shared.runtime.checkpoints import Layout, Mark, step_of
from nemotron_shared.runtime.models.weights import ADAPTER_WEIGHTS

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "sharded/.metadata"
OPTIMIZER = "optimizer.pt"
STATE = ("scheduler.pt", "trainer_state.json")


def missing_state(checkpoint: Path, mark: Mark) -> str | None:
    """A missing part that a resumed run would silently reset: the Trainer continues even without optimizer state."""
    processes = mark.world_size
    # one file of weights, or an index with all its files, or adapters alone, or each process's shards
    if SHARDS in mark.files:
        state = {SHARDS, *(f"sharded/__{rank}_0.distcp" for rank in range(processes))}
    elif INDEX in mark.files:
        state = {*read_json(checkpoint / INDEX)["weight_map"].values(), OPTIMIZER}
    else:
        state = {ADAPTER_WEIGHTS if ADAPTER_WEIGHTS in mark.files else WEIGHTS, OPTIMIZER}
    # the Trainer's names; a single process has no number
    states = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    needed = [*sorted(state), *STATE, *states]
    absent = [name for name in needed if name not in mark.files]
    if absent:
        return f"{', '.join(absent)} missing"
    step = read_json(checkpoint / "trainer_state.json").get("global_step")
    return None if step == mark.step else f"trainer_state.json is from step {step}"


LAYOUT = Layout(step_of, missing_state)


def checkpoint_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of a checkpoint: weights and optimizer tensors, plus a tenth for small files.

    With frozen weights, only the trained ones are saved.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = len(trained) < len(list(model.parameters()))
    tensors = trained if frozen else [*trained, *model.buffers()]
    tensors += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return int(1.1 * sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def save_or_explain(checkpoint: Path, needed: int, save: Callable[[], None]) -> None:
    """Let every process write its part of a checkpoint; a full disk raises one error and leaves no folder behind.

    Raises:
        UserError: the disk is full, before or while writing. Earlier checkpoints are not affected.
    """
    distributed.on_rank_zero(lambda: disk.require_room(checkpoint.parent, needed, checkpoint.name))
    full: UserError | None = None
    try:
        save()
    except Exception as error:
        full = disk.full_disk_error(error, checkpoint)
        if full is None:
            raise
    # Barrier: no process may mark a checkpoint that another failed to write, or write into one being removed.
    if distributed.any_rank(full is not None):
        if distributed.rank() == 0:
            shutil.rmtree(checkpoint, ignore_errors=True)
        raise full or SystemExit(2)
