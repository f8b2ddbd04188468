#!/usr/bin/env bash
# The guess: a module under FSDP2 (`fully_shard`) holds its shard again when a forward pass has ended, whether it ended
# with a result or with an exception.
#
# What happens: the module in which the exception was raised, and everything around it, keeps its whole gathered
# parameters. `model.parameters()` then gives plain tensors of the full size beside the shards, until the next forward
# pass that ends well, or `reshard()`.
#
# Why it matters: a loop that catches an out-of-memory error and tries again with a smaller batch starts with less free
# memory than before. A checkpoint that is written in the handler (a rescue save) has whole tensors for some modules
# and shards for the others. Call `reshard()` on each module first.
#
# Versions: torch 2.13.0, gloo on the CPU, two processes. Date: 2026-11-29.
#
# Seen:
#   torch 2.13.0
#   numbers that a process holds of each part, of 64:
#     before the exception:  [32, 32, 32]
#     after the exception:   [32, 64, 32]
#     after reshard():       [32, 32, 32]
#   types of the parameters after the exception: ['DTensor', 'Parameter', 'DTensor']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment" OMP_NUM_THREADS=1
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 numpy==2.4.6

cat > program.py <<'PYTHON'
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
        self.fails = False

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("this stands for an out-of-memory error")
        return hidden @ self.weight


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(Part(), Part(), Part())
for part in model:
    fully_shard(part, mesh=mesh)
fully_shard(model, mesh=mesh)


def held() -> list[int]:
    """Count the numbers that this process holds of each part."""
    local = (getattr(parameter, "to_local", lambda p=parameter: p)() for parameter in model.parameters())
    return [tensor.numel() for tensor in local]


before = held()
model[1].fails = True
try:
    model(torch.randn(4, 8))
except RuntimeError:
    pass
after = held()
types = [type(parameter).__name__ for parameter in model.parameters()]
for part in model:
    part.reshard()
again = held()
if dist.get_rank() == 0:
    print("torch", torch.__version__.split("+")[0])
    print("numbers that a process holds of each part, of 64:")
    print("  before the exception: ", before)
    print("  after the exception:  ", after)
    print("  after reshard():      ", again)
    print("types of the parameters after the exception:", types)
dist.destroy_process_group()
if (before, after, again) != ([32, 32, 32], [32, 64, 32], [32, 32, 32]) or types[1] != "Parameter":
    sys.exit("changed: other parts are gathered after an exception")
PYTHON
environment/bin/torchrun --standalone --nproc-per-node 2 program.py 2>errors || { cat errors; exit 1; }
