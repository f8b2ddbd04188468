"""Locks between processes, including processes on different machines.

    with locked(folder / "lock", wait=False):       raises Busy, naming the process, if another one is inside
        ...

On local file systems we use flock, which the kernel releases when a process dies. On shared ones (NFS, Lustre, ...)
flock may only work within one machine, so there it is a POSIX lock, which NFS supports, plus a record with a heartbeat:

    lock.json    {"host": "node7", "machine": "9f2c.../4026531836", "pid": 4711, "process_started": "8123",
                  "started": 1769860800.0, "heartbeat": 1769860870.0}

A record from this machine is checked against its processes; one from another machine is watched for a heartbeat.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

from nemotron_shared.system import atomic
from nemotron_shared.system.console import clear_renewed
from nemotron_shared.system.errors import UserError, printable

# Here flock suffices, because no other machine can mount them at the same time. All others may be shared.
LOCAL_FILE_SYSTEMS = {
    "apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs",
}  # fmt: skip
MOUNTS = Path("/proc/mounts")
HEARTBEAT_SECONDS = 10.0
# Three heartbeats plus the delay of a busy file server: a holder silent for this long is gone.
SILENT_SECONDS = 35.0
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class Busy(UserError):
    """Another process holds the lock."""


@dataclass(frozen=True)
class Holder:
    """The process holding a lock, according to its record."""

    host: str
    machine: str
    pid: int
    process_started: str
    started: float
    heartbeat: float

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine (and in this container), so its process can be looked up."""
        return self.machine == _machine()

    @property
    def lives(self) -> bool:
        """Whether the process that wrote the record is still running on this machine."""
        return self.is_here and _process_started(self.pid) == self.process_started

    def __str__(self) -> str:
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


def this_process() -> Holder:
    """This process, as a record of it names it."""
    now = time.time()
    return Holder(socket.gethostname(), _machine(), os.getpid(), _process_started(os.getpid()), now, now)


@contextmanager
def locked(path: Path, *, wait: bool, announce: Callable[[], None] = lambda: None) -> Generator[None]:
    """Hold the lock at `path`, with its record next to it.

    Args:
        wait: wait until it is free; otherwise fail at once.
        announce: called once if we have to wait.

    Raises:
        Busy: another process holds it.
        UserError: `path` is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a regular file", "remove it: the lock file is recreated")
    shared = _file_system(path) not in LOCAL_FILE_SYSTEMS
    with path.open("a+") as file, ExitStack() as record:
        if wait and not shared:  # the kernel's lock is enough: no record
            try:
                _take(file, path, False, shared)
            except Busy:
                announce()
                _take(file, path, True, shared)
            yield
            return
        told = False
        while True:
            # Trust a live record even if the kernel grants the lock.
            while (holder := holder_of(path)) and (
                holder.lives or (shared and not holder.is_here and _beats(path, holder, announce=not wait))
            ):
                if not wait:
                    raise Busy(f"{path.parent}: {holder} is already running this step", "wait for it, or end it")
                if not told:
                    announce()
                told = True
                time.sleep(0.05)
            _take(file, path, wait, shared)
            try:
                record.enter_context(_recorded(path, shared=shared, dead=holder))
                break
            except Busy:  # no locks on this file system, and another process was faster
                if not wait:
                    raise
        yield


def holder_of(path: Path) -> Holder | None:
    """The holder according to the lock's record; None without one. It may have died since: see `is_held`."""
    try:
        found = Holder(**json.loads(atomic.read_regular(record_of(path)).decode()))
    except (OSError, UserError, ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found.pid, int) and isinstance(found.heartbeat, int | float) else None


def is_held(path: Path, holder: Holder) -> bool:
    """Whether the holder seems to be running, without waiting; on another machine, by its last heartbeat."""
    if holder.is_here:
        return holder.lives
    if _file_system(path) in LOCAL_FILE_SYSTEMS:
        return False  # an earlier container, or a machine of another name, that used this disk
    return abs(time.time() - holder.heartbeat) < SILENT_SECONDS


def record_of(path: Path) -> Path:
    """Path of the record that describes a lock's holder."""
    return path.with_name(f"{path.name}.json")


def _beats(path: Path, holder: Holder, *, announce: bool) -> bool:
    """Watch another machine's record until it changes. Clocks differ between machines, so times are not compared."""
    if announce:
        waiting = f"waiting up to {SILENT_SECONDS:.0f} s to see whether it still runs"
        clear_renewed()
        print(printable(f"{path.parent}: {holder} was here last: {waiting}"), file=sys.stderr, flush=True)
    deadline = time.monotonic() + SILENT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(HEARTBEAT_SECONDS / 20)
        found = holder_of(path)
        if found is None:
            return False
        if found != holder:
            return True
    return False


def _take(file: IO[str], path: Path, wait: bool, shared: bool) -> None:
    """Take the kernel's lock: POSIX first on file systems that may be shared."""
    flags = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    for lock in (fcntl.lockf, fcntl.flock) if shared else (fcntl.flock, fcntl.lockf):
        try:
            lock(file, flags)
            return
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK}:
                who = holder_of(path) or "another process"
                raise Busy(f"{path.parent}: {who} is already running this step", "wait for it, or end it") from error
            if error.errno not in UNSUPPORTED:
                raise
    _say_that_locks_do_not_hold(_mount_of(path))


@contextmanager
def _recorded(path: Path, *, shared: bool, dead: Holder | None) -> Generator[None]:
    """Keep this process's record next to the lock while it holds it; `dead` is the stale holder to replace."""
    mine = this_process()
    record = record_of(path)
    draft = record.with_name(f"{atomic.TEMPORARY_PREFIX}{record.name}.{mine.host}.{mine.pid}")
    atomic.write_json(draft, asdict(mine))
    try:
        if shared:
            # Linking fails if the record exists: only one of two simultaneous processes gets in, even without locks.
            if holder_of(path) == dead:
                record.unlink(missing_ok=True)
            os.link(draft, record)
        else:
            draft.replace(record)
    except FileExistsError as error:
        raise Busy(f"{path.parent}: {holder_of(path)} was a moment faster", "wait for it, or end it") from error
    except OSError:
        atomic.write_json(record, asdict(mine))  # a file system without links
    finally:
        draft.unlink(missing_ok=True)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            with suppress(OSError, UserError):  # a full disk: the work itself will report it
                atomic.write_json(record, asdict(mine) | {"heartbeat": time.time()})

    # Only on shared file systems: a running thread would keep this process from forking.
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True) if shared else None
    if thread:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread:
            thread.join()
        record.unlink(missing_ok=True)


@cache
def _say_that_locks_do_not_hold(mount: tuple[str, str]) -> None:
    point, kind = mount
    line = f"{point} ({kind}) does not support locks: only the record next to each lock keeps two processes apart here"
    clear_renewed()
    print(printable(line), file=sys.stderr, flush=True)  # only rank 0 takes locks


@cache
def _machine() -> str:
    """This boot of this machine, and this container: the scope in which a process id is valid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()  # not Linux


def _process_started(pid: int) -> str:
    """Start time of a process, which distinguishes it from a later one with the same pid; "" without a process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = status.rpartition(")")[2].split()  # the process name may contain spaces
        return "" if fields[0] in {"Z", "X"} else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    try:  # not Linux
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "running"


def _file_system(path: Path) -> str:
    return _mount_of(path)[1]


def _mount_of(path: Path) -> tuple[str, str]:
    """Mount point and type of the file system that holds `path`."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "/", "apfs"  # not Linux: assume a laptop's file system
    where = os.path.realpath(path.parent)
    best = ("/", "unknown")
    for line in lines:
        point, kind = (field.encode().decode("unicode_escape") for field in line.split(" ")[1:3])
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):  # of two mounts at one point, the later hides the earlier
            best = (point, kind)
    return best
