"""Several processes, one decision: rank 0 resolves and prepares, and broadcasts its result to the other ranks.

torch is only imported if there is more than one process.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import rank, world_size

Result = TypeVar("Result")

# Rank 0 may prepare data for a long time while the others wait.
PATIENCE = timedelta(hours=24)


def spread(strategy: str) -> str:
    """How a model is sharded, for people: `FSDP2 over 4 processes`."""
    return f"{strategy.upper()} over {world_size()} process{'es' if world_size() > 1 else ''}"


class _Alone:
    """Whether rank 0 is working alone while the other ranks wait for its result."""

    now = False


def on_rank_zero(work: Callable[[], Result]) -> Result:
    """Run `work` on rank 0 and return its (picklable) result on every rank.

    Inside `work`, this function and `barrier` do not wait for the other ranks, which are already waiting.

    A `UserError` or a stop on rank 0 is raised there; the other ranks exit silently with the same code.
    """
    if world_size() == 1 or _Alone.now:
        return work()
    import torch

    if not torch.distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend, timeout=PATIENCE)
    message: list[Any] = [None, None]
    if rank() == 0:
        _Alone.now = True
        try:
            message = [work(), None]
        except (UserError, KeyboardInterrupt) as error:  # the others must not wait forever
            message = [None, error]
        finally:
            _Alone.now = False
    torch.distributed.broadcast_object_list(message, src=0, device=torch.device("cpu"))
    result, error = message
    if error is not None:
        raise error if rank() == 0 else SystemExit(getattr(error, "exit_code", 130))
    return result


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true on at least one rank; every rank must call this together."""
    if world_size() == 1:
        return flag
    import torch

    tensor = torch.tensor([int(flag)])
    torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return bool(tensor.item())


def barrier() -> None:
    """Wait until every rank is here."""
    if world_size() > 1 and not _Alone.now:
        import torch

        torch.distributed.barrier()


def leave() -> None:
    """Destroy the process group, so that no rank waits for one that has ended."""
    if world_size() == 1 or "torch" not in sys.modules:
        return
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
