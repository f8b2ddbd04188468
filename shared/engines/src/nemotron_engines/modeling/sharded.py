"""FSDP2: weights, gradients and optimizer in shards, one for each process, and checkpoints that any number reads.

torch's own `fully_shard` and distributed checkpoints: accelerate leaves a model on CPUs whole, without a word.

    model = spread(whole, shell, dtype, device)      rank 0 reads the weights and sends every process its shard
    save_state(folder, model, optimizer)             folder/sharded/__0_0.distcp, one for each process, and .metadata
    load_state(folder, model, optimizer)             into as many shards as there are now, or into a whole model
    weights_of(model)                                all of them in the memory of rank 0, for the published model
"""

import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from nemotron_shared.runtime import distributed

FOLDER = "sharded"
warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process alone may read and write


def spread(
    whole: Callable[[], PreTrainedModel], shell: Callable[[], PreTrainedModel], dtype: str, device: str
) -> PreTrainedModel:
    """A model in shards; one process alone keeps it whole.

    Args:
        whole: make it with its weights, in the memory of rank 0 only.
        shell: make it without them, on every other process.
        dtype: what is computed in, as in `engine.dtype`.
        device: `auto` or `cpu`, as in `engine.device`.
    """
    if distributed.world_size() == 1:
        return whole()
    made: list[PreTrainedModel] = []
    distributed.on_rank_zero(lambda: made.append(whole()))  # an error there ends the others, too
    model = made[0] if made else shell()
    weights = model.state_dict() if made else {}
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    cut(model, kind, bfloat16=dtype == "bfloat16")
    if not made:
        model.to_empty(device=kind)
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for buffer in model.buffers():  # also those that no state holds
        dist.broadcast(buffer, src=0)
    return model


def cut(model: nn.Module, kind: str, *, bfloat16: bool) -> None:
    """Cut each block, and what stands around the blocks, so that one block at a time is whole in a pass.

    In bfloat16 the pieces are sent and computed with in bfloat16; the shards that the optimizer moves, and the sums
    of gradients, are float32.
    """
    mesh = init_device_mesh(kind, (distributed.world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bfloat16 else MixedPrecisionPolicy()
    blocks: Any = getattr(model, "_no_split_modules", None) or ()
    for module in [one for one in model.modules() if type(one).__name__ in blocks]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    # transformers' own sign, for `generate`: a process that has finished goes on as long as another needs its shards
    model._is_fsdp_managed_module = True  # ty: ignore[invalid-assignment]


def prepare_sharded(trainer: Any) -> None:
    """Keep accelerate from wrapping a sharded model once more, and cut a reference model as the model is."""
    stock = trainer.accelerator.prepare_model

    def prepare(model: nn.Module, *args: Any, **settings: Any) -> nn.Module:
        if isinstance(trainer.model, FSDPModule):
            if not isinstance(model, FSDPModule):
                cut(model, trainer.args.device.type, bfloat16=trainer.args.bf16)
            settings["evaluation_mode"] = True  # prepare all but the gradients' exchange, which FSDP2 does
        return stock(model, *args, **settings)

    trainer.accelerator.prepare_model = prepare


def save_state(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Let every process write its shards of the weights and of the optimizer's state."""
    with _first_failure():
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, _plain(optimizer))}
        dcp.save(state, checkpoint_id=checkpoint / FOLDER)


def load_weights(checkpoint: Path, model: nn.Module) -> None:
    """Read every weight into a model that is sharded over any number of processes, or whole."""
    weights = get_model_state_dict(model)
    with _first_failure():
        dcp.load({"model": weights}, checkpoint_id=checkpoint / FOLDER)
    set_model_state_dict(model, weights)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read the optimizer's state, likewise."""
    state = get_optimizer_state_dict(model, _plain(optimizer))
    with _first_failure():
        dcp.load({"optimizer": state}, checkpoint_id=checkpoint / FOLDER)
    set_optimizer_state_dict(model, _plain(optimizer), state)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor] | None:
    """All weights of a sharded model, whole, on rank 0, and none on the others; None of a model that is whole.

    Every rank must call this together.
    """
    if not isinstance(model, FSDPModule):
        return None
    weights: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return weights


def weights_in(checkpoint: Path, model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights of a checkpoint, read by this process alone."""
    weights: Any = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in model.state_dict().items()}
    with _first_failure():
        dcp.load({"model": weights}, checkpoint_id=checkpoint / FOLDER, no_dist=True)
    return weights


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that accelerate's holds."""
    return getattr(optimizer, "optimizer", optimizer)


@contextmanager
def _first_failure() -> Generator[None]:
    """torch tells every process what failed on any; the first of it is what a caller can know: a full disk."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
