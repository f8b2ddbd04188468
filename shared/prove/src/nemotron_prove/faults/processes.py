"""Faults of real processes: the command that starts a step, the pipeline, and the ranks of torchrun."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nemotron_prove.faults.bench import Bench, Target
from nemotron_prove.faults.child import GRACE, Command, Ran, children, reap
from nemotron_prove.faults.tried import Tried, judge
from nemotron_shared.lock import holder_of

PATIENCE = 300.0
RANKS = 2
LONGER = 2.0
"""Seconds after the step has begun, within which a real process is disturbed."""
NAMED = re.compile(r"SIGKILL|SIGTERM|Signal \d+|exitcode\s*:\s*-?\d+|ChildFailedError|died|connection", re.IGNORECASE)


def launcher(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """The command that started the step is killed: the step must end with it, and a rerun go on."""
    number = drawn.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    stage = target.command.module.split(".")[1]
    command = [sys.executable, "-m", "nemotron_app.main", "super3", stage, *target.command.words]
    return _disturbed_parent(bench, target, command, f"{number.name} to the launcher of {stage}", number, share)


def pipeline(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """The same for the pipeline, in the last step that is left to do."""
    number = drawn.choice((signal.SIGKILL, signal.SIGTERM))
    stage = target.command.module.split(".")[1]
    words = [f"{stage}.{word}" if "=" in word else word for word in target.command.words]
    command = [sys.executable, "-m", "nemotron_app.main", "super3", "pipeline", *words]
    return _disturbed_parent(bench, target, command, f"{number.name} to the pipeline", number, share)


def _disturbed_parent(
    bench: Bench, target: Target, command: Sequence[str], what: str, number: signal.Signals, share: float
) -> Tried:
    bench.restore(target.base)
    kept = bench.kept()
    process, log = _begin(command, bench.home)
    happened = _wait_for_work(bench.home, process)
    time.sleep(share * LONGER)
    process.send_signal(number)
    ended = process.wait(PATIENCE)
    ran = Ran(ended, log.read_text(errors="replace"), 0.0, reap())
    return judge(bench, target, f"{what}, {share * LONGER:.1f} s after its step began", [ran], kept, happened=happened)


def rank(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """One of two ranks dies: the other ends within 30 s, the cause is named, and a rerun makes the same bytes."""
    whole = _torchrun(target)
    if whole.name not in bench.references:
        bench.measure(whole)
    bench.restore(target.base)
    kept = bench.kept()
    process, log = _begin(_torchrun_command(target), bench.home)
    happened = _wait_for_work(bench.home, process)
    time.sleep(share * LONGER)
    ranks = [pid for pid in children(process.pid) if _is_rank(pid)]
    victim = drawn.randrange(RANKS)
    if len(ranks) <= victim:
        happened = False
    else:
        os.kill(ranks[victim], signal.SIGKILL)
    killed_at = time.monotonic()
    try:
        code = process.wait(GRACE * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    took = time.monotonic() - killed_at
    said = log.read_text(errors="replace")
    left = reap()
    tried = judge(bench, whole, f"rank {victim} of {RANKS} killed", [], kept, happened=happened)
    if happened and code == 0:
        tried.happened = False  # it was at its end already
    elif happened and took > GRACE:
        tried.wrong.append(f"the other rank went on for {took:.0f} s")
    elif happened and not NAMED.search(said):
        tried.wrong.append(f"the cause is not named: {said[-300:]}")
    tried.left += left
    tried.wrong += [f"{left} processes were left"] if left else []
    return tried


def _torchrun(target: Target) -> Target:
    """The target on two ranks, as a step of this module."""
    words = (target.command.module, *target.command.words)
    return Target(f"{target.name} on {RANKS} ranks", Command(__name__, words), target.result, target.base)


def _torchrun_command(target: Target) -> list[str]:
    torchrun = ["-m", "nemotron_shared.runtime.torchrun", "--standalone", f"--nproc-per-node={RANKS}"]
    return [sys.executable, *torchrun, "-m", target.command.module, *target.command.words]


class Ranks:
    """A step on two ranks, called as the step of a stage is."""

    directory = Path(__file__).parent

    def main(self) -> int:
        """Run torchrun to its end; returns its exit code."""
        module, *words = sys.argv[1:]
        done = subprocess.run(_torchrun_command(Target("", Command(module, tuple(words)), "")), check=False)
        return done.returncode


STEP = Ranks()
main = STEP.main


def _begin(command: Sequence[str], home: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    """A real process beside the store."""
    log = home.parent / "log-process"
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=home.parent, env=environment, stdout=file, stderr=file)
    return process, log


def _wait_for_work(home: Path, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until the step has taken its run's lock; False where it ended before."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if any((holder := holder_of(lock)) and holder.lives for lock in home.glob("runs/*/lock")):
            return True
        time.sleep(0.02)
    return False


def _is_rank(pid: int) -> bool:
    try:
        return b"RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
