"""For the tests of all members: servers that fork commands, and the CPU time that everything took."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest_plugins = ["slurm_support", "browser"]
"""A Slurm and a browser for the tests of every member."""

SERVER = Path(__file__).parent / "tests" / "fork_server.py"
SERVERS = pytest.StashKey[list[subprocess.Popen[bytes]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers once for all of xdist's workers; they import nothing before the first command."""
    if hasattr(config, "workerinput"):
        return
    folder = Path(tempfile.mkdtemp(prefix="fork-"))
    os.environ["FORK_SERVERS"] = str(folder)
    config.stash[SERVERS] = [
        subprocess.Popen([sys.executable, str(SERVER), str(folder / kind), kind]) for kind in ("light", "heavy")
    ]
    while not ((folder / "light").exists() and (folder / "heavy").exists()):
        time.sleep(0.01)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """CPU time says more than the duration: machines differ, and others load them."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    forked = Path(os.environ["FORK_SERVERS"]) / "cpu_seconds"
    if forked.exists():
        seconds += sum(float(line.split()[0]) for line in forked.read_text().splitlines())
    terminalreporter.write_line(f"CPU time: {seconds / 60:.1f} minutes")


def pytest_unconfigure(config: pytest.Config) -> None:
    for server in config.stash.get(SERVERS, []):
        server.kill()
        server.wait()
    if SERVERS in config.stash:
        shutil.rmtree(os.environ.pop("FORK_SERVERS"))
