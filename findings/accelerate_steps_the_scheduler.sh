#!/usr/bin/env bash
# The guess: a learning-rate scheduler that is given to `Accelerator.prepare` steps once for each `scheduler.step()`,
# on two processes as on one. Written for the number of updates that a process makes, it ends with the last update.
#
# What happens: the prepared scheduler steps as many times as there are processes. A decay over N updates is at its end
# after N / 2 of them on two processes, after N / 8 on eight, and stays there.
#
# Why it matters: `len(prepared_loader)` is the natural length for a schedule, and is already divided by the number of
# processes. Most of the run then trains at a rate of zero, and the curve just looks flat. Leave the scheduler out of
# `prepare`, or count its steps over all processes.
#
# Versions: accelerate 1.15.0, torch 2.13.0. Date: 2026-11-29.
#
# Seen:
#   accelerate 1.15.0 torch 2.13.0
#   1 process,  10 updates: 1.0 0.9 0.8 0.7 0.6 0.5 0.4 0.3 0.2 0.1
#   2 processes, 10 updates: 1.0 0.8 0.6 0.4 0.2 0.0 0.0 0.0 0.0 0.0
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
uv venv --quiet environment
export VIRTUAL_ENV="$folder/environment" OMP_NUM_THREADS=1
uv pip install --quiet --exclude-newer 2026-11-28 torch==2.13.0 accelerate==1.15.0 numpy==2.4.6

cat > program.py <<'PYTHON'
import sys

import accelerate
import torch
from accelerate import Accelerator

UPDATES = 10
accelerator = Accelerator(cpu=True)
processes = accelerator.num_processes
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / UPDATES))
loader = torch.utils.data.DataLoader(torch.randn(UPDATES * processes, 4), batch_size=1)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
assert len(loader) == UPDATES
rates = []
for batch in loader:
    rates.append(scheduler.get_last_lr()[0])
    accelerator.backward(model(batch).sum())
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
if accelerator.is_main_process:
    if processes == 1:
        print("accelerate", accelerate.__version__, "torch", torch.__version__.split("+")[0])
    shown = " ".join(f"{rate:.1f}" for rate in rates)
    print(f"{processes} {'process, ' if processes == 1 else 'processes,'} {UPDATES} updates: {shown}")
accelerator.end_training()
expected = [max(0.0, 1 - processes * update / UPDATES) for update in range(UPDATES)]
if max(abs(rate - other) for rate, other in zip(rates, expected)) > 1e-6:
    sys.exit("changed: the scheduler steps in another way")
PYTHON
environment/bin/python program.py
environment/bin/torchrun --standalone --nproc-per-node 2 program.py 2>errors || { cat errors; exit 1; }
