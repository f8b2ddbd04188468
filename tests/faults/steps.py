"""Run a step in a copy of this process, which has imported everything, disturb it, and see what it leaves running.

    ran = run(Command("stages.sft.data_prep", ("-c", "tiny")), home, page=page, signals=[(0.3, signal.SIGKILL)])
    ran.code, ran.said, ran.left

The process that runs it must have no other children: whatever is left when the step has ended is the step's.

Faults of the file system come from `shim.c`, a library between the step and libc, which also sees what C++ and Rust
write. The process must have been started under it (LD_PRELOAD):

    page = Page(); page.plan(Fault(17, "once", errno.ENOSPC))
    page.arm(home)                        in the child: its 17th write, sync, rename, ... below `home` fails
"""

import atexit
import ctypes
import importlib
import mmap
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from support import last_values

from nemotron_shared.system.errors import UserError

SOURCE = Path(__file__).with_name("shim.c")
MOST_CALLS = 65536
Mode = Literal["count", "once", "ever", "short", "signal"]
MODES: tuple[Mode, ...] = ("count", "once", "ever", "short", "signal")


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a call: an errno once or from then on, half a write, or a signal just before it."""

    call: int
    mode: Mode
    value: int = 0


class _Page(ctypes.Structure):
    """As in shim.c."""

    _fields_ = (
        ("seen", ctypes.c_long),
        ("nth", ctypes.c_long),
        ("hits", ctypes.c_long),
        ("mode", ctypes.c_int),
        ("value", ctypes.c_int),
        ("what", ctypes.c_char * 512),
        ("kinds", ctypes.c_char * MOST_CALLS),
    )


class Page:
    """Memory shared with child processes: which fault to make, and which calls they made."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Page))
        self._page = _Page.from_buffer(self._memory)

    def plan(self, fault: Fault) -> None:
        """Reset the counts; this fault is for the next child."""
        ctypes.memset(ctypes.addressof(self._page), 0, ctypes.sizeof(_Page))
        self._page.nth, self._page.mode, self._page.value = fault.call, MODES.index(fault.mode), fault.value

    def arm(self, folder: Path) -> None:
        """Count what this process and its children change below a folder from now on, and make the fault."""
        library().faults_arm(ctypes.byref(self._page), str(folder).encode())

    @property
    def calls(self) -> str:
        """A letter for each call: o(pen) w(rite) s(ync) r(ename) l(ink) m(kdir)."""
        return self._page.kinds.decode()

    @property
    def hit(self) -> str:
        """The call that went wrong, `w /home/runs/...`; "" if it was not reached."""
        return self._page.what.decode(errors="replace")


@cache
def library() -> ctypes.CDLL:
    """The shim, under which this process was started."""
    return ctypes.CDLL(None)


def compile_shim(folder: Path) -> Path:
    """The shim, built into a folder.

    Raises:
        UserError: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UserError("no C compiler, which the shim of file-system faults needs", "install gcc")
    target = folder / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(SOURCE), "-ldl"], check=True)
    return target


PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 300.0
"""Seconds after which a step that does not end is a failure."""
GRACE = 30.0
"""Seconds in which everything that a step has started must have ended after it."""
POLL = 0.005
ENDING = {signal.SIGTERM, signal.SIGINT}
Disturbance = tuple[float, signal.Signals]
"""Seconds after the start, and what is sent then."""


@dataclass(frozen=True)
class Command:
    """A step: its module, and the words of its command line, of which the last gives a key its value."""

    module: str
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(last_values(self.words)))

    def __str__(self) -> str:
        return shlex.join(["python", "-m", self.module, *self.words])


@dataclass(frozen=True)
class Ran:
    """How a step ended.

    Attributes:
        code: exit code; below 0 the signal that ended it.
        said: what it printed, both streams.
        left: processes that had to be killed after it.
    """

    code: int
    said: str
    seconds: float
    left: int = 0

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.said

    @property
    def last_line(self) -> str:
        """Of what it said, for a table."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        error = next((line for line in lines if line.startswith("error:")), None)
        return error or (lines[-1] if lines else "")


def adopt_orphans() -> None:
    """Let what a child leaves behind become a child of this process, so that it is seen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(command: Command, home: Path, log: Path, page: Page | None, before: Callable[[], None] | None) -> int:
    """Begin a step with a store; returns its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    # what comes before the child has handlers of its own waits: those of this process clean up what is not the child's
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        return pid
    code = 1
    try:
        code = _code_of(lambda: _become(command, home, log, page, before))
        with suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:  # or a signal at this moment would run what this process has to clean up, in its copy
        os._exit(code)


def _code_of(main: Callable[[], int]) -> int:
    """The exit code that Python would end with."""
    try:
        return main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:  # before or after the step's own code, where Python itself would say so
        return 130
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1


def _become(command: Command, home: Path, log: Path, page: Page | None, before: Callable[[], None] | None) -> int:
    """Be the process of the step, as far as it can tell."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, file, file)):
        os.dup2(source, number)
    os.chdir(home.parent)
    os.environ["NEMOTRON_HOME"] = str(home)
    sys.argv = [command.module, *command.words]
    if before is not None:
        before()
    if page is not None:
        page.arm(home)
    return importlib.import_module(command.module).main()


def run(
    command: Command,
    home: Path,
    *,
    page: Page | None = None,
    before: Callable[[], None] | None = None,
    signals: Sequence[Disturbance] = (),
) -> Ran:
    """Run a step to its end, and send it signals on the way.

    Args:
        page: the shim's, with a fault; None for a step that is left alone.
        before: called in the child, before the step.
    """
    (log,) = logs_for(home, 1)
    began = time.monotonic()
    pid = start(command, home, log, page, before)
    code = wait_for(pid, began, signals)
    seconds = time.monotonic() - began
    return Ran(code, log.read_text(errors="replace"), seconds, reap())


def logs_for(home: Path, count: int) -> list[Path]:
    """Empty files for what steps print, beside the store."""
    files = [home.parent / f"log-{number}" for number in range(count)]
    for file in files:
        file.write_text("")
    return files


def wait_for(pid: int, began: float, signals: Sequence[Disturbance] = ()) -> int:
    """The exit code of a child; what is still stopped or hangs at the end of all patience is killed."""
    waiting = sorted(signals)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        passed = time.monotonic() - began
        while waiting and waiting[0][0] <= passed:
            os.kill(pid, waiting.pop(0)[1])
        if passed > PATIENCE:
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)


def reap(grace: float = GRACE) -> int:
    """Wait for all that a step has started; how many had to be killed because they did not end."""
    killed: set[int] = set()
    until = time.monotonic() + grace
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return len(killed)
        if not ended and time.monotonic() > until:
            for pid in children():
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        if not ended:
            time.sleep(POLL)


def children(of: int | Literal["self"] = "self") -> list[int]:
    """The children of a process of one thread."""
    pid = os.getpid() if of == "self" else of
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
