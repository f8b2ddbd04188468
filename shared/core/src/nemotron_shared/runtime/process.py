"""Children that end with their parent, whatever ends it: SIGKILL gives a parent no time to end them itself.

    subprocess.Popen(ending_with_us([sys.executable, "-m", "stages.sft.train"]))

The command is started through this file, which asks Linux for SIGTERM on the death of the parent and then becomes the
command. A stage saves on SIGTERM; a program that starts others of its own is watched instead (`group=True`).
What comes while a stage's script imports its libraries waits until the script can heed it: see `heed_signals`.
"""

import os
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
"""How long another program has to end after SIGTERM: whoever stopped us allows ten seconds in all."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDING = {signal.SIGINT, signal.SIGTERM}
SCRIPTS = "stages."
"""How the modules begin that call `heed_signals` themselves."""


def ending_with_us(command: Sequence[str], *, group: bool = False) -> list[str]:
    """The command line that runs `command` as a child which ends when this process does.

    Args:
        group: the child has a process group of its own (`start_new_session=True`), which ends as a whole.
    """
    # -I and -S: nothing of an environment is imported on the way, which makes it 20 ms.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "group" if group else "alone", *command]


def use_no_code_of_this_folder() -> None:
    """Let every Python that this process starts import what is installed, and nothing from the working folder.

    `python -m` and `python -c` look there first, and somebody's model or data may lie beside a `jinja2.py`.
    """
    os.environ["PYTHONSAFEPATH"] = "1"


def _ask_linux(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Send this process a signal when its parent ends. A process that starts threads calls this from its main thread.

    Args:
        parent: its process id, as known before this process began: it may be gone already.
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
    """Let what asks this process to end wait until a copy of it was made; the copy calls `forked`.

    In the copy the handlers of this process would do what is not the copy's, and what they raise here, in a hook of
    the fork, would go nowhere.
    """
    came: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # which runs the handlers, whatever thread is signalled
        handlers = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)  # none: one that Python does not know
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number in came:
            signal.raise_signal(number)


def forked() -> None:
    """In a copy, once it has handlers of its own."""
    heed_signals()


def heed_signals() -> None:
    """Let what asks this process to end come to it, and what came meanwhile come now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_group(process: "subprocess.Popen[bytes]", grace: float = GRACE_SECONDS) -> None:
    """End a child that has a process group of its own, and all that it started: first politely, then surely."""
    if process.poll() is not None:
        return
    until = time.monotonic() + grace
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with suppress(ProcessLookupError):  # the whole group has gone
        while time.monotonic() < until:  # what it started has as long as it had itself
            os.killpg(process.pid, 0)
            time.sleep(LOOK_AT_ENDING_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_own_group(child: "subprocess.Popen[bytes]") -> None:
    """The same from inside: this process leads the group and ends with it."""
    if sys.platform == "linux":  # what the child leaves behind becomes ours, and so can be waited for
        _ask_linux(PR_SET_CHILD_SUBREAPER, 1)
    until = time.monotonic() + GRACE_SECONDS
    os.killpg(0, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    with suppress(ChildProcessError):  # no child is left
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(LOOK_AT_ENDING_SECONDS)
    os.killpg(0, signal.SIGKILL)  # this process too


def _start(parent: int, group: bool, command: list[str]) -> None:
    """Become the command, or stay and watch over it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of this file when Ctrl-C comes now
    if sys.platform == "linux" and not group:
        end_with_parent(parent, signal.SIGTERM)
        if command[1:2] == ["-m"] and command[2].startswith(SCRIPTS):
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        os.execvp(command[0], command)
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A group is sent its signals as a whole. Not SIG_IGN, which the child would inherit.
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
    if code < 0:  # whoever waits for us sees how the child ended
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _start(int(sys.argv[1]), sys.argv[2] == "group", sys.argv[3:])
