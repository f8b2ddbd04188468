"""Start the processes of a step, and kill children when their parent dies, even by SIGKILL.

    subprocess.Popen(ending_with_us([sys.executable, "-m", "stages.sft.train"]))

The command is started through this file, which asks Linux for SIGTERM on the parent's death and then execs the
command. A stage saves on SIGTERM; a program that starts further processes is supervised instead (`group=True`).
Signals that arrive while a stage's script imports libraries are blocked until it can handle them: see `heed_signals`.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

LOOK_AGAIN_SECONDS = 0.5
LOOK_AT_ENDING_SECONDS = 0.02
GRACE_SECONDS = 5.0
"""Time another program has to end after SIGTERM: we are given ten seconds in all."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDING = {signal.SIGINT, signal.SIGTERM}
SCRIPTS = "stages."
"""Prefix of modules that call `heed_signals` themselves."""
UNDER_UV = "UV_RUN_RECURSION_DEPTH"
"""Variable that `uv run` sets for what it starts."""
COMMANDS = (
    "airgap", "artifacts", "chat", "check", "check-sampling", "completion", "config", "data", "diagnose", "doctor",
    "engine", "env", "export", "finetune", "generate", "jobs", "model", "new", "plan", "report", "runs", "serve",
    "verify",
)  # fmt: skip
"""First words of commands; others begin with a family, such as super3."""
COMMAND = re.compile(rf"(?<![\w./-])(?<!uv run )nemotron(?= (?:{'|'.join(COMMANDS)}|[a-z]+\d+[a-z]*)(?![\w-]))")


def rank() -> int:
    """This process's rank, 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Number of processes torchrun started, 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def as_typed(text: str) -> str:
    """A text whose commands can be typed as they stand: under `uv run`, `nemotron` alone is not found in the shell."""
    return COMMAND.sub("uv run nemotron", text) if UNDER_UV in os.environ else text


def ending_with_us(command: Sequence[str], *, group: bool = False) -> list[str]:
    """The command line that runs `command` as a child that ends when this process does.

    Args:
        group: the child is in a separate process group (`start_new_session=True`), which ends as a whole.
    """
    # -I and -S import nothing from the environment, so this takes 20 ms.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "group" if group else "alone", *command]


def use_no_code_of_this_folder() -> None:
    """Keep every Python this process starts from importing code from the working folder.

    `python -m` and `python -c` search it first, and it may contain a `jinja2.py` next to someone's model or data.
    """
    os.environ["PYTHONSAFEPATH"] = "1"


def _ask_linux(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Send this process a signal when its parent dies. Call it from the main thread in a process with threads.

    Args:
        parent: its process id, taken before this process started: it may have died since.
    """
    if sys.platform == "linux":
        _ask_linux(PR_SET_PDEATHSIG, int(number))
    else:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(LOOK_AGAIN_SECONDS)
            os.kill(os.getpid(), number)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


@contextmanager
def forking() -> Generator[None]:
    """Defer signals that ask this process to end until it has forked; the child calls `forked`.

    In the child, this process's handlers would do the wrong thing; in the parent, exceptions they raise inside a fork
    hook would be lost.
    """
    came: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # Python runs handlers in the main thread only
        handlers = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: a handler not set from Python
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number in came:
            signal.raise_signal(number)


def forked() -> None:
    """Unblock signals in a forked child, once its own handlers are set."""
    heed_signals()


def heed_signals() -> None:
    """Unblock signals that ask this process to end, delivering pending ones now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_group(process: "subprocess.Popen[bytes]", grace: float = GRACE_SECONDS) -> None:
    """End a child in its own process group, and everything it started: SIGTERM first, then SIGKILL."""
    if process.poll() is not None:
        return
    until = time.monotonic() + grace
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with suppress(ProcessLookupError):  # the whole group has ended
        while time.monotonic() < until:  # its own children get as long as it had
            os.killpg(process.pid, 0)
            time.sleep(LOOK_AT_ENDING_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_own_group(child: "subprocess.Popen[bytes]") -> None:
    """The same from inside: this process leads the group and ends with it."""
    if sys.platform == "linux":  # adopt the child's orphans, so we can wait for them
        _ask_linux(PR_SET_CHILD_SUBREAPER, 1)
    until = time.monotonic() + GRACE_SECONDS
    os.killpg(0, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    with suppress(ChildProcessError):  # no children are left
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(LOOK_AT_ENDING_SECONDS)
    os.killpg(0, signal.SIGKILL)  # this process too


def _start(parent: int, group: bool, command: list[str]) -> None:
    """Exec the command, or supervise it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from this file on Ctrl-C
    if sys.platform == "linux" and not group:
        end_with_parent(parent, signal.SIGTERM)
        if command[1:2] == ["-m"] and command[2].startswith(SCRIPTS):
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        os.execvp(command[0], command)
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A group receives signals as a whole. Not SIG_IGN, which the child would inherit.
        signal.signal(number, lambda number, frame: None if group else child.send_signal(number))
    while child.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_AGAIN_SECONDS)
        if os.getppid() != parent and not group:
            child.terminate()
            child.wait()
        elif os.getppid() != parent:
            _end_own_group(child)
    code = child.wait()
    if code < 0:  # end the same way as the child
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _start(int(sys.argv[1]), sys.argv[2] == "group", sys.argv[3:])


MUST_SAVE_BY = "NEMOTRON_MUST_SAVE_BY"
"""Time by which a job must have saved, DD:HH:MM:SS after its start: for a library that ignores signals."""


def launch_command(module: str, processes: int) -> list[str]:
    """`python -m module`, or torchrun for more than one process."""
    if processes == 1:
        return [sys.executable, "-m", module]
    torchrun = ["-m", "nemotron_shared.engine.torchrun", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *torchrun, "-m", module]
