"""FSDP2: shard weights, gradients and optimizer over processes, with checkpoints for any number of processes.

Uses torch's `fully_shard` and distributed checkpoints, because accelerate silently does not shard models on CPUs.

    model = spread(whole, shell, dtype, device)      rank 0 reads the weights and sends each process its shard
    save_state(folder, model, optimizer)             folder/sharded/__0_0.distcp, one per process, and .metadata
    load_state(folder, model, optimizer)             into any number of shards, or into an unsharded model
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

from nemotron_shared.system import distributed

FOLDER = "sharded"
warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a single process may read and write


def spread(
    whole: Callable[[], PreTrainedModel], shell: Callable[[], PreTrainedModel], dtype: str, device: str
) -> PreTrainedModel:
    """A sharded model; a single process does not shard.

    Args:
        whole: builds it with its weights, on rank 0 only.
        shell: builds it without weights, on every other process.
        dtype: compute dtype, as in `engine.dtype`.
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
    for buffer in model.buffers():  # including those outside the state dict
        dist.broadcast(buffer, src=0)
    return model


def cut(model: nn.Module, kind: str, *, bfloat16: bool) -> None:
    """Shard each block, and the layers around the blocks, so that a pass gathers one block at a time.

    With bfloat16, parameters are gathered and computed in bfloat16; the optimizer's shards and the reduced gradients
    are float32.
    """
    mesh = init_device_mesh(kind, (distributed.world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bfloat16 else MixedPrecisionPolicy()
    blocks: Any = getattr(model, "_no_split_modules", None) or ()
    # inner ones first, as torch asks for: Mamba and Zamba name blocks and their parts
    for module in reversed([one for one in model.modules() if type(one).__name__ in blocks]):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    # tells `generate` to keep finished processes running while others need their shards
    model._is_fsdp_managed_module = True  # ty: ignore[invalid-assignment]


def prepare_sharded(trainer: Any) -> None:
    """Keep accelerate from wrapping a sharded model again, and shard a reference model like the model."""
    stock = trainer.accelerator.prepare_model

    def prepare(model: nn.Module, *args: Any, **settings: Any) -> nn.Module:
        if isinstance(trainer.model, FSDPModule):
            if not isinstance(model, FSDPModule):
                cut(model, trainer.args.device.type, bfloat16=trainer.args.bf16)
            settings["evaluation_mode"] = True  # skip the gradient synchronisation, which FSDP2 does
        return stock(model, *args, **settings)

    trainer.accelerator.prepare_model = prepare


def save_state(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write every process's shards of the weights and of the optimizer's state."""
    with _first_failure():
        state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, _plain(optimizer))}
        dcp.save(state, checkpoint_id=checkpoint / FOLDER)


def load_weights(checkpoint: Path, model: nn.Module) -> None:
    """Load all weights into a model sharded over any number of processes, or unsharded."""
    weights = get_model_state_dict(model)
    with _first_failure():
        dcp.load({"model": weights}, checkpoint_id=checkpoint / FOLDER)
    set_model_state_dict(model, weights)


def load_optimizer(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the optimizer's state, likewise."""
    state = get_optimizer_state_dict(model, _plain(optimizer))
    with _first_failure():
        dcp.load({"optimizer": state}, checkpoint_id=checkpoint / FOLDER)
    set_optimizer_state_dict(model, _plain(optimizer), state)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor] | None:
    """The full weights of a sharded model on rank 0, tied ones once, none on other ranks; None for an unsharded model.

    Collective: every rank must call this.
    """
    if not isinstance(model, FSDPModule):
        return None
    weights: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return _once(model, weights)


def weights_in(checkpoint: Path, model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights of a checkpoint, tied ones once, read by a single process."""
    there = _once(model, model.state_dict())
    weights: Any = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in there.items()}
    with _first_failure():
        dcp.load({"model": weights}, checkpoint_id=checkpoint / FOLDER, no_dist=True)
    return weights


def _once(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """Weights without further names of tied ones, as transformers saves an unsharded model."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    again = every - {name for name, _ in model.named_parameters()}
    return {name: value for name, value in weights.items() if name not in again}


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """Unwrap accelerate's optimizer."""
    return getattr(optimizer, "optimizer", optimizer)


@contextmanager
def _first_failure() -> Generator[None]:
    """Raise the first failure of any process: torch wraps it, and callers need to recognise a full disk."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
