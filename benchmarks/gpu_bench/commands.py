"""Run commands with a time limit: SIGTERM first, so that a stage can save its state, then SIGKILL."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
PATIENCE = 45.0
"""Seconds between SIGTERM and SIGKILL."""
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}


class Ended(NamedTuple):
    code: int
    in_time: bool
    output: str
    """Both streams."""
    seconds: float


class Clock:
    """The time budget shared by all cases."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes
        self.minutes = minutes

    def left(self) -> float:
        """Seconds, never below zero."""
        return max(0.0, self._end - time.monotonic())


def run(command: Sequence[str], limit: float, log: Path) -> Ended:
    """Run a command from the repository, with its output in `log`.

    At the limit it gets SIGTERM, on which our stages write a checkpoint and stop, and later SIGKILL. It runs in a
    separate process group, so that children are killed with it.
    """
    sources = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | QUIET | {"PYTHONPATH": sources}
    began, in_time = time.monotonic(), True
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [str(word) for word in command], cwd=REPOSITORY, env=environment, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            in_time = False
            process.terminate()
            _wait_or_kill(process)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    output = log.read_text(encoding="utf-8", errors="replace")
    return Ended(process.returncode, in_time, output, time.monotonic() - began)


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_words(output: str) -> str:
    """The line that shows what went wrong: the last one with an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line.partition(":")[0]]
    return (telling or lines or ["no output"])[-1][:300]


def probe(python: str, modules: Sequence[str], folder: Path) -> dict[str, Any]:
    """What an interpreter can run; see programs/probe.py. `problems` explains an empty result."""
    try:
        ended = run([python, str(PROGRAMS / "probe.py"), *modules], 180, folder / "probe.log")
    except OSError as error:
        return {"problems": [f"{python}: {error.strerror}"], "gpu": None, "versions": {}, "kernel_problems": []}
    for line in reversed(ended.output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {"problems": [last_words(ended.output)], "gpu": None, "versions": {}, "kernel_problems": []}


def default_python() -> str:
    return sys.executable
