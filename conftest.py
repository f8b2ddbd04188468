"""For the tests of all members: servers that fork commands, and the CPU time that the tests took."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

SERVER = Path(__file__).parent / "tests" / "fork_server.py"
SERVERS = pytest.StashKey[list[subprocess.Popen[bytes]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers once for all workers; they import nothing before the first command."""
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    os.environ["FORK_SERVERS"] = folder = tempfile.mkdtemp(prefix="fork-")
    config.stash[SERVERS] = [
        subprocess.Popen([sys.executable, str(SERVER), str(Path(folder, kind)), kind]) for kind in ("light", "heavy")
    ]
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)


def pytest_unconfigure(config: pytest.Config) -> None:
    for server in config.stash.get(SERVERS, []):
        server.kill()
        server.wait()
    if SERVERS in config.stash:
        shutil.rmtree(os.environ.pop("FORK_SERVERS"))


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note what a test took, fixtures included, on its last report."""
    item.stash[BEGUN] = cpu_seconds()
    return (yield)


BEGUN = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports travel from xdist's workers to the process that prints."""
    report = yield
    report.user_properties.append((f"cpu", cpu_seconds() - item.stash[BEGUN]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much CPU time the run took, which says more than its duration: machines differ and are loaded."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] = max(seconds.get(report.nodeid, 0.0), *(v for k, v in report.user_properties if k == "cpu"))
    terminalreporter.write_line(f"CPU time of {len(seconds)} tests: {sum(seconds.values()) / 60:.1f} minutes")
    import json,os
    if os.environ.get("CPU_OUT"): json.dump(seconds, open(os.environ["CPU_OUT"],"w"))
