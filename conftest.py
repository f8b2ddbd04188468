"""Shared test setup: fork servers for commands, measured figures, and total CPU time."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import advised
import forked_rehearsals
import parsed_once
import pytest

from nemotron_shared.system.process import UNDER_UV

pytest_plugins = ["slurm_support", "browser"]
"""A real Slurm and a browser, for the tests of every member."""

SERVER = Path(__file__).parent / "tests" / "fork_server.py"
LONGEST = ("test_learning.py",)
"""Files whose tests take minutes each: begun last, one would keep the other workers waiting."""
SERVERS = pytest.StashKey[list[subprocess.Popen[bytes]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fuzz N`, for a long campaign."""
    parser.addoption("--fuzz", type=int, metavar="N", help="new damaged inputs for each parser (default: 100)")


def pytest_configure(config: pytest.Config) -> None:
    """Start the fork servers once for all xdist workers; they import nothing before the first command."""
    os.environ.pop(UNDER_UV, None)  # `uv run pytest` is not how the commands below are started
    parsed_once.install()
    advised.install()
    forked_rehearsals.install()
    if hasattr(config, "workerinput"):
        return
    folder = Path(tempfile.mkdtemp(prefix="fork-"))
    os.environ["FORK_SERVERS"] = str(folder)
    config.stash[SERVERS] = [
        subprocess.Popen([sys.executable, str(SERVER), str(folder / kind), kind]) for kind in ("light", "heavy")
    ]
    while not ((folder / "light").exists() and (folder / "heavy").exists()):
        time.sleep(0.01)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m slow`, import only files that mark a test as slow: importing the others takes each worker 5 s."""
    if config.option.markexpr == "slow" and collection_path.suffix == ".py":
        return True if "slow" not in collection_path.read_text(encoding="utf-8").lower() else None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that measure figures, for `pytest -m measured`, and begin with those that take minutes."""
    for item in items:
        if "measure" in getattr(item, "fixturenames", ()):
            item.add_marker("measured")
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Callable[[str, float, float], None]:
    """`measure(what, value, limit)`: require a figure to be within its limit, and record it for docs/measured.md.

    Figures are recorded only if benchmarks/measured.py started the tests.
    """

    def check(what: str, value: float, limit: float) -> None:
        twin = request.node.callspec.params["twin"]
        if file := os.environ.get("NEMOTRON_MEASURED"):
            test = request.node.nodeid.partition("[")[0]
            figure = {"what": what, "twin": twin, "value": value, "limit": limit, "test": test}
            with Path(file).open("a", encoding="utf-8") as record:  # a single write per line: workers share the file
                record.write(json.dumps(figure) + "\n")
        assert value <= limit, f"{what}, {twin}: {value} is not within {limit}"  # also fails for NaN

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the CPU time, which is more meaningful than the duration on machines of different speed and load."""
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
