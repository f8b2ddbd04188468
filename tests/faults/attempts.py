"""One attempt at a training, on one process or several: followed by what it prints, and killed at a moment.

The processes are copies of this one, which has imported everything, and learn their numbers from variables, as those
that srun starts. When one of them dies, the others are asked to end, and killed after a while, as torchrun does it.
Each process writes down which token ids it trained on.
"""

import hashlib
import os
import re
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.steps import GRACE, PATIENCE, POLL, Command, logs_for, reap, start

STEP = re.compile(r"\] step (\d+)/\d+ ")
CONTINUED = re.compile(r"continuing from step (\d+)")


@dataclass(frozen=True)
class Kill:
    """When: so long after the line of a step, or the start (None). Whom: one rank, or all, with what they started."""

    after_step: int | None
    seconds: float
    rank: int | None = None


@dataclass
class Attempt:
    """The result of an attempt.

    Attributes:
        code: exit code of the first process that failed; below 0 the signal that ended it.
        reached: seconds after the start at which a step was printed.
        killed: it was killed before its end.
        left: processes that had to be killed long after it.
    """

    batches: list[Path]
    code: int = 0
    said: str = ""
    reached: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    killed: bool = False
    left: int = 0

    @property
    def start(self) -> int:
        """The step after which it continued; 0 if it began from the start."""
        found = CONTINUED.search(self.said)
        return int(found[1]) if found else 0

    @property
    def last(self) -> int:
        """The last step that it printed, or the one after which it continued."""
        return max(self.reached, default=self.start)


class _Ranks:
    """The processes of an attempt."""

    def __init__(self, command: Command, home: Path, count: int) -> None:
        self.logs, self.began = logs_for(home, count), time.monotonic()
        self.attempt = Attempt([home.parent / f"batches-{rank}" for rank in range(count)])
        for file in self.attempt.batches:
            file.write_text("")
        variables = rendezvous(count) if count > 1 else {}
        self.alive = {
            rank: start(command, home, log, None, _before(rank, variables, self.attempt.batches[rank]))
            for rank, log in enumerate(self.logs)
        }
        self.codes, self.until = list[int](), self.began + PATIENCE

    def follow(self) -> None:
        """Look at what they said, and who has ended."""
        self.attempt.said = self.logs[0].read_text(encoding="utf-8", errors="replace")
        now = time.monotonic() - self.began
        for step in STEP.findall(self.attempt.said):
            self.attempt.reached.setdefault(int(step), now)
        for rank, pid in list(self.alive.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.alive[rank]
                self._ended(os.waitstatus_to_exitcode(status))
        if time.monotonic() > self.until:
            self.send(signal.SIGKILL)

    def _ended(self, code: int) -> None:
        self.codes.append(code)
        if code and not self.attempt.code:
            self.attempt.code = code
            self.until = time.monotonic() + GRACE
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals, rank: int | None = None) -> None:
        """To one of them, or to all, with whatever they have started."""
        for pid in [self.alive[rank]] if rank in self.alive else [*self.alive.values()]:
            try:
                os.killpg(pid, number)
            except ProcessLookupError:  # it has just begun, and leads no group yet
                os.kill(pid, number)


def attempt(command: Command, home: Path, processes: int, kill: Kill | None = None) -> Attempt:
    """Run a training to its end, or to the moment at which it is killed."""
    ranks = _Ranks(command, home, processes)
    made = ranks.attempt
    while ranks.alive:
        ranks.follow()
        if kill and ranks.alive and not made.killed and _has_come(kill, made, time.monotonic() - ranks.began):
            made.killed = True
            ranks.send(signal.SIGKILL, kill.rank)
        time.sleep(POLL)
    ranks.follow()
    made.seconds = time.monotonic() - ranks.began
    made.left = reap()
    made.killed = made.killed and -signal.SIGKILL in ranks.codes
    return made


def _has_come(kill: Kill, made: Attempt, now: float) -> bool:
    if kill.after_step is None:
        return now >= kill.seconds
    later = [when for step, when in made.reached.items() if step >= kill.after_step]
    return bool(later) and now >= min(later) + kill.seconds


def _before(rank: int, variables: dict[str, str], batches: Path) -> Callable[[], None]:
    """What a process does before it is the training's."""

    def before() -> None:
        os.environ.update({**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)} if variables else {})
        note_batches(batches)

    return before


def rendezvous(count: int) -> dict[str, str]:
    """The variables by which so many processes find each other on this machine."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = str(count)
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}


Batches = dict[int, list[str]]
"""Digests of the token ids of the forward passes, in order, by step from 0."""


def note_batches(file: Path) -> None:
    """In the process that will train: write `STEP DIGEST` for each forward pass of training. A kill loses none."""
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
    """The notes of an attempt that continued after step `start`."""
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
