"""Run a step as its script would, and send it SIGTERM in the middle of one pass through the model.

    python stopper.py COUNTS TURN stages.rl.train -c tiny ...

TURN is the number of the pass, from 1. COUNTS gets a line for each pass, and one at the signal: what follows that line
is work that was begun after it.
"""

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from torch.nn import Embedding
from torch.nn.modules.module import register_module_forward_pre_hook

counts, turn, module = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sys.argv = [module, *sys.argv[4:]]
passes = 0


def note(line: str) -> None:
    with counts.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def before_forward(module: Any, inputs: Any) -> None:
    """Called before each module's forward. One of these begins every pass, whoever computes it: token ids are read."""
    global passes
    if not isinstance(module, Embedding):
        return
    passes += 1
    note("train" if module.training else "eval")
    if passes == turn:
        note("signal")
        os.kill(os.getpid(), signal.SIGTERM)


register_module_forward_pre_hook(before_forward)
sys.exit(importlib.import_module(module).main())
