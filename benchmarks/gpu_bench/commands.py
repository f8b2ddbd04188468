"""Start commands, and wait for them with a limit."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}


class Ended(NamedTuple):
    code: int
    in_time: bool
    output: str
    """Both streams."""
    seconds: float


class Started:
    """A command that runs from the repository in a separate process group, with its output in `log`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log, self.began = log, time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [str(word) for word in command], cwd=REPOSITORY, env=os.environ | QUIET | dict(environment),
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self, limit: float) -> Ended:
        """Wait at most `limit` seconds; what still runs then is killed with its children."""
        in_time = True
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        output = self.log.read_text(encoding="utf-8", errors="replace")
        return Ended(self.process.returncode, in_time, output, time.monotonic() - self.began)


def run(command: Sequence[str], limit: float, log: Path, environment: Mapping[str, str]) -> Ended:
    """Run a command for at most `limit` seconds."""
    return Started(command, log, environment).wait(limit)


def last_words(output: str) -> str:
    """The line that shows what went wrong: the last one with an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line.partition(":")[0]]
    return (telling or lines or ["no output"])[-1][:300]


def probe(python: str, modules: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What an interpreter can run; see programs/probe.py. `problems` explains an empty result."""
    try:
        ended = run([python, str(PROGRAMS / "probe.py"), *modules], 180, folder / "probe.log", environment)
    except OSError as error:
        return {"problems": [f"{python}: {error.strerror}"], "gpu": None, "versions": {}, "kernel_problems": []}
    for line in reversed(ended.output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {"problems": [last_words(ended.output)], "gpu": None, "versions": {}, "kernel_problems": []}
