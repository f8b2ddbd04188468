"""Faults of the file system, put between a step and libc by `shim.c`, which also reaches what C++ and Rust write.

library = compiled(folder)                   a C compiler is needed, and Linux
os.execve(..., {"LD_PRELOAD": library})      the campaign starts itself again under it
page = Page(); page.plan(Fault(17, "once", errno.ENOSPC))
page.arm(home)                               in the child: its 17th write, sync, rename, ... below `home` fails
"""

import ctypes
import mmap
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from nemotron_shared.errors import UserError

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
    """Memory that a process shares with its children, by which they are told what to do and tell what they did."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Page))
        self._page = _Page.from_buffer(self._memory)

    def plan(self, fault: Fault) -> None:
        """Forget what was counted; this fault is for the next child."""
        ctypes.memset(ctypes.addressof(self._page), 0, ctypes.sizeof(_Page))
        self._page.nth, self._page.mode, self._page.value = fault.call, MODES.index(fault.mode), fault.value

    def arm(self, folder: Path) -> None:
        """From now on count what this process and its children change below a folder, and let the fault come."""
        library().faults_arm(ctypes.byref(self._page), str(folder).encode())

    @property
    def calls(self) -> str:
        """A letter for each call: o(pen) w(rite) s(ync) r(ename) l(ink) m(kdir)."""
        return self._page.kinds.decode()

    @property
    def hit(self) -> str:
        """The call that went wrong, `w /home/runs/...`; "" where it was not reached."""
        return self._page.what.decode(errors="replace")


@cache
def library() -> ctypes.CDLL:
    """The shim that this process was started under.

    Raises:
        UserError: there is none.
    """
    found = ctypes.CDLL(None)
    if not hasattr(found, "faults_arm"):
        raise UserError("this process was not started under the shim of file-system faults")
    return found


def compiled(folder: Path) -> Path:
    """The shim, built into a folder.

    Raises:
        UserError: there is no C compiler, or it does not build.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UserError("no C compiler: faults of the file system are put between a step and libc", "install gcc")
    target = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise UserError(f"{SOURCE}: {compiler} does not build it: {built.stderr.strip()[:500]}")
    return target
