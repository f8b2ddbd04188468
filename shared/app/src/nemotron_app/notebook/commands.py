"""Run a command of `nemotron` for a notebook: its progress is printed as it comes, its errors are raised.

    answer_of(["super3", "sft", "-c", "tiny"], quiet=False)    {"artifact": "super3-sft-model:v1", "path": ...}

The command runs in a separate process, with the notebook's interpreter. A step sets torch's threads and seeds,
replaces functions inside transformers, handles signals and keeps a GPU's memory; in the notebook's process, all of that
would outlive the call and could change the next one. In its own process a call is the command itself, with the same
config, result and bytes, however many calls came before, and `import nemotron` needs no torch. The price is a start of
some seconds.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

from nemotron_shared.system.console import tell
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import ending_with_us
from nemotron_shared.system.stop import STOPPED_EXIT_CODE, Stopped

COLOURS = {"FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}
"""Variables that ask for colours, some of which a kernel of Jupyter sets: our lines are text."""
KEPT = 1000
"""Lines of a command that are kept, to find its error in."""
WARNING = "WARNING: "
"""How lines begin, after the name of their step, that should not be missed: an input from another file, say."""
AGAIN = "what is saved is kept: the same call continues from there"


def answer_of(words: Sequence[str], *, quiet: bool, allowed: Collection[int] = (0,)) -> Any:
    """Run a command with `--json`, and return what it answers.

    Args:
        words: of the command line, without `nemotron`.
        quiet: print warnings only.
        allowed: exit codes with which it answers.

    Raises:
        UserError: the command's own error.
        Stopped: something else stopped it, such as `nemotron runs stop`.
        KeyboardInterrupt: the notebook was interrupted; a training has saved its state.
    """
    said: deque[str] = deque(maxlen=KEPT)
    with tempfile.TemporaryFile() as answer:
        command = [sys.executable, "-m", "nemotron_app.main", *words, "--json"]
        code, interrupted = _run(command, answer, said, quiet)
        if interrupted and (code < 0 or code in (STOPPED_EXIT_CODE, *allowed)):
            raise KeyboardInterrupt  # also where it ended just then: what comes after this call was to be stopped, too
        if code not in allowed:
            raise _error(words, code, "".join(said))
        answer.seek(0)
        try:
            return json.loads(answer.read())
        except ValueError:  # it crashed with a code that it also answers with, as a traceback's 1
            raise _error(words, code, "".join(said)) from None


def start(command: Sequence[str], environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[str]) -> Any:
    """Start a process that ends with this one."""
    return subprocess.Popen(ending_with_us(command), env=environment, stdout=stdout, stderr=stderr)


def _run(command: Sequence[str], answer: IO[bytes], said: deque[str], quiet: bool) -> tuple[int, bool]:
    """Run a command to its end. Returns its exit code, and whether it was interrupted.

    An interrupt is passed on to it, once for each time; it saves and stops. Jupyter interrupts whole process groups, so
    that it may get the signal twice; steps take that for one request.
    """
    # as the command does for what it starts: nothing in the working folder hides an installed package
    environment = {key: value for key, value in os.environ.items() if key not in COLOURS} | {"PYTHONSAFEPATH": "1"}
    read, write = os.pipe()
    with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
        with os.fdopen(write, "w") as errors:
            process = start(command, environment, answer, errors)
        interrupted = False
        try:
            while True:
                try:
                    for line in lines:
                        said.append(line)
                        if not quiet or WARNING in line:
                            tell(line.rstrip("\n"))
                    return process.wait(), interrupted
                except KeyboardInterrupt:
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            for _ in lines:  # it saves, and could not say so to a pipe that is full or closed
                pass
            process.wait()
            raise


def _error(words: Sequence[str], code: int, said: str) -> Exception:
    """The error for a command that failed: what it said itself, or all of a traceback."""
    if code == STOPPED_EXIT_CODE:
        return Stopped("\n".join(said.splitlines()[-2:]) or "stopped")
    # the first: a command that failed because of another one says so after it
    _, found, told = f"\n{said}".partition("\nerror: ")
    if found:
        message, _, remedy = told.strip().partition("\n")
        return UserError(message, remedy.strip() or None)
    what = f"nemotron {shlex.join(words)}"
    if code < 0:
        return UserError(f"{what}: killed by {signal.Signals(-code).name}", AGAIN)
    return RuntimeError(f"{what}: exit code {code}\n{said}")
