"""Measure a command's whole process tree: wall time, CPU-seconds, memory.

The command runs in a new session. /proc is read every 50 ms; a process counts if it is in that session or if its parent
was counted, since workers of Ray or a fork server may leave the session.
"""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

POLL_SECONDS = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
LAST_LINES = 15


class Usage(NamedTuple):
    wall_s: float
    cpu_s: float
    """User and system time of all processes."""
    peak_mb: float
    """Largest sum of resident memory at one moment, in 10^6 bytes; shared pages count once per process."""
    largest_mb: float
    """Largest resident memory of one process."""
    output: str
    """Output of the command, both streams."""


class CommandFailed(Exception):
    """The command failed; the message has its last lines."""


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    started: int
    cpu_ticks: int
    resident: int
    """Bytes."""


@dataclass
class Tree:
    """Processes counted so far."""

    session: int
    older: set[int]
    """Processes that already existed before the command; skipping them makes reading faster."""
    ticks: dict[tuple[int, int], int] = field(default_factory=dict)
    """CPU time last seen, by (pid, start time), because pids are reused."""
    peak: int = 0
    largest: int = 0

    def look(self) -> None:
        """Read /proc once."""
        pids = pids_now()
        self.older &= pids
        alive = {process.pid: process for process in processes(pids - self.older)}
        members = [process for process in alive.values() if self._belongs(process, alive)]
        for process in members:
            self.ticks[process.pid, process.started] = process.cpu_ticks
        self.peak = max(self.peak, sum(process.resident for process in members))
        self.largest = max([self.largest, *(process.resident for process in members)])

    def _belongs(self, process: Process, alive: dict[int, Process]) -> bool:
        if process.session == self.session or (process.pid, process.started) in self.ticks:
            return True
        parent = alive.get(process.parent)
        return parent is not None and parent.pid != process.pid and self._belongs(parent, alive)

    def cpu_seconds(self) -> float:
        return sum(self.ticks.values()) / TICKS


def pids_now() -> set[int]:
    with os.scandir("/proc") as entries:
        return {int(entry.name) for entry in entries if entry.name.isdigit()}


def processes(pids: Iterable[int]) -> Iterator[Process]:
    for pid in pids:
        with suppress(OSError, IndexError):  # it may end while we read
            yield _parse(pid, Path(f"/proc/{pid}/stat").read_text())


def _parse(pid: int, stat: str) -> Process:
    values = stat.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
    parent, session, user, system, started, pages = (int(values[i]) for i in (1, 3, 11, 12, 19, 21))
    return Process(pid, parent, session, started, user + system, pages * PAGE)


def run_measured(command: list[str], environment: dict[str, str], folder: Path) -> Usage:
    """Run a command to its end in a folder; raises `CommandFailed` if it fails.

    Args:
        environment: variables to set in addition to those of this process.
    """
    with tempfile.TemporaryFile() as printed:  # not a pipe: processes that outlive the command would keep it open
        older, start = pids_now(), time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
        tree, ended = Tree(process.pid, older), threading.Event()
        watcher = threading.Thread(target=_watch, args=(tree, ended))
        watcher.start()
        _, status, waited = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        ended.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    if process.returncode:
        last = "\n    ".join(output.splitlines()[-LAST_LINES:])
        raise CommandFailed(f"{' '.join(command)}\n  ended with {process.returncode}:\n    {last}")
    cpu = max(tree.cpu_seconds(), waited.ru_utime + waited.ru_stime)
    # not waited.ru_maxrss: it includes the memory of this process when it started the command
    return Usage(wall, cpu, tree.peak / 1e6, tree.largest / 1e6, output)


def _watch(tree: Tree, ended: threading.Event) -> None:
    while not ended.wait(POLL_SECONDS):
        tree.look()
