"""What each optimizer step of a process trained on, noted while it trains: the order of the data, seen from inside.

3 5e884898da28...      before its 4th step of this attempt, a forward pass over these token ids
"""

import hashlib
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

Batches = dict[int, list[str]]
"""Step, from 0 -> digests of the token ids of its forward passes, in order."""


def note_batches(file: Path) -> None:
    """In the process that will train: write a line for each forward pass of training. A kill loses none."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    written, steps, passed = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 0, False

    def before_forward(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        nonlocal passed
        # the embedding is the only module that every model gives its token ids to
        if isinstance(module, torch.nn.Embedding) and module.training and torch.is_grad_enabled():
            os.write(written, f"{steps} {hashlib.sha256(given[0].numpy().tobytes()).hexdigest()}\n".encode())
            passed = True

    def after_step(*optimizer: Any) -> None:
        nonlocal steps, passed
        # without a pass before it, it is how distributed checkpoints give an optimizer its state before they fill it
        steps, passed = steps + passed, False

    register_module_forward_pre_hook(before_forward)
    register_optimizer_step_post_hook(after_step)


def read_batches(file: Path, start: int) -> Batches:
    """The notes of an attempt that went on after step `start`."""
    found: Batches = defaultdict(list)
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    for line in lines:
        step, digest = line.split()
        found[start + int(step)].append(digest)
    return found


def differing_step(whole: Batches, part: Batches) -> int | None:
    """The first step, from 1, that was trained on something else; the last one of a part may have been cut off."""
    for step, digests in sorted(part.items()):
        wanted = whole.get(step, [])
        if digests != (wanted[: len(digests)] if step == max(part) else wanted):
            return step + 1
    return None
