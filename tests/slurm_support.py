"""A real Slurm of a head and two nodes for tests: the fixtures `slurm`, `accounting_slurm` and
`container_slurm` (see tests/slurm/up.sh).

    def test_both_nodes(slurm):
        assert slurm.run("head", "srun", "-N2", "hostname").stdout.split() == ["n1", "n2"]

Files are shared: head, nodes and test see the same paths. A test ends its own jobs (`slurm.clear()`).
"""

import os
import re
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "slurm"
NEEDED = "NEMOTRON_NEEDS_SLURM"
"""Set to 1 where the cluster is known to work: what would be a skip elsewhere is a failure there."""


class Cluster:
    """A cluster that is up. `with Cluster(folder, "--account") as cluster:` also ends it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        # It ends with its standard input, so also when the tests are killed.
        up = [SCRIPTS / "up.sh", folder, "--tied", *options]
        self._up = subprocess.Popen(up, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._up.stderr is not None
        said = self._up.stderr.read()
        assert self._up.wait() == 0, f"the test cluster did not start\n{said}"

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def shared(self) -> Path:
        """A folder for the files of jobs."""
        return self.folder / "shared"

    def command(self, node: str, *argv: str | Path) -> list[str]:
        """What runs `argv` on the head or on a node, for who wants to start it themselves."""
        return [str(word) for word in (SCRIPTS / "in.sh", self.folder, node, *argv)]

    def run(
        self,
        node: str,
        *argv: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on "head", "n1" or "n2"; the caller looks at the exit code."""
        return subprocess.run(
            self.command(node, *argv),
            env=os.environ | dict(env or {}),
            cwd=cwd or self.shared,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def checked(self, node: str, *argv: str | Path) -> str:
        """What a command prints that has to succeed."""
        result = self.run(node, *argv)
        assert result.returncode == 0, f"{argv}: {result.stdout}{result.stderr}"
        return result.stdout.strip()

    def script(self, body: str, *options: str) -> str:
        """Submit a batch script; its output goes to `output(job)`. Returns the job's id."""
        file = self.shared / f"{time.time_ns()}.sh"
        file.write_text(f"#!/bin/bash\n{body}\n")
        log = f"--output={self.shared}/%j.out"
        return self.checked("head", "sbatch", "--parsable", "--open-mode=append", log, *options, file)

    def output(self, job: str) -> str:
        """What a job of `script` has printed so far."""
        file = self.shared / f"{job}.out"
        return file.read_text() if file.exists() else ""

    def state(self, job: str) -> str:
        """RUNNING, COMPLETED, ...: as the controller has it, which forgets a job five minutes after its end."""
        found = re.search(r"JobState=(\w+)", self.checked("head", "scontrol", "show", "job", job))
        assert found
        return found[1]

    def wait_until(self, predicate: Callable[[], object], minutes: float = 5) -> None:
        """Ask every tenth of a second; other work makes the machine slow, so the limit is generous."""
        end = time.monotonic() + 60 * minutes
        while not predicate():
            if time.monotonic() > end:
                raise AssertionError(f"not so after {minutes} minutes\n{self.condition()}")
            time.sleep(0.1)

    def condition(self) -> str:
        """The queue, the nodes, their processes and the ends of the logs, for who reads a failure afterwards."""
        asked = [self.run("head", *words.split()).stdout for words in ("squeue -t all", "sinfo -N", "sinfo -R")]
        for node in ("n1", "n2"):
            asked.append(f"{node}: {' '.join(self.run(node, 'ps', '-eo', 'comm=').stdout.split())}\n")
        for log in sorted((self.folder / "log").glob("*.log")):
            last = log.read_text(errors="replace").splitlines()[-10:]
            asked.append("\n".join([f"{log.name}:", *last, ""]))
        return "".join(asked)

    def wait_for(self, job: str, *states: str, minutes: float = 5) -> str:
        """Wait until a job is in one of the states; returns it."""
        self.wait_until(lambda: self.state(job) in states, minutes)
        return self.state(job)

    def lose(self, node: str) -> None:
        """The node loses power: all of its processes and its network are gone at once. Slurm has to notice."""
        process = (self.folder / "run" / f"{node}.pid").read_text().strip()
        self.run("head", "kill", "-9", process)  # fails if it is gone already
        self.wait_until(lambda: self.run("head", "kill", "-0", process).returncode)

    def bring_back(self, node: str) -> None:
        """The node boots; returns when it can be given jobs again."""
        self.checked("head", "setsid", "--fork", SCRIPTS / "node.sh", node)
        self.wait_until(
            lambda: self.run("head", "sinfo", "-h", "-n", node, "-p", "batch", "-o", "%t").stdout == "idle\n"
        )

    def mend(self) -> list[str]:
        """Replace nodes that are down, so that one test's lost node does not fail the tests after it; their names."""
        states = self.checked("head", "sinfo", "-h", "-N", "-p", "batch", "-o", "%N %t").splitlines()
        lost = [line.split()[0] for line in states if "down" in line]
        for node in lost:
            self.lose(node)
            self.bring_back(node)
        return lost

    def clear(self) -> None:
        """End all jobs, and wait until the nodes are free."""
        self.checked("head", "scancel", "--me")
        self.wait_until(lambda: not self.checked("head", "squeue", "-h"))

    def down(self) -> None:
        """End every process of the cluster, whatever a test has left."""
        subprocess.run([SCRIPTS / "down.sh", self.folder], check=True, timeout=600)
        assert self._up.stdin is not None
        self._up.stdin.close()


def _missing(reason: str) -> None:
    """Skip, loudly; fail where everything has to be there."""
    if os.environ.get(NEEDED) == "1":
        pytest.fail(f"NO TEST CLUSTER: {reason} ({NEEDED}=1)")
    pytest.skip(f"NO TEST CLUSTER: {reason}")


def need_slurm() -> None:
    """Go on only where Slurm is installed and namespaces are allowed."""
    probe = subprocess.run([SCRIPTS / "probe.sh"], capture_output=True, text=True, check=False)
    if probe.returncode:
        _missing((probe.stdout + probe.stderr).strip())


@pytest.fixture(autouse=True)
def whole_slurm(request: pytest.FixtureRequest) -> None:
    """All nodes of the worker's cluster are up when a test begins."""
    if "slurm" in request.fixturenames and (lost := request.getfixturevalue("slurm").mend()):
        warnings.warn(f"a test before {request.node.nodeid} has lost {', '.join(lost)}", stacklevel=1)


def started(factory: pytest.TempPathFactory, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """The body of a fixture: a cluster with these options of up.sh, which is ended whatever happens."""
    need_slurm()
    with Cluster(factory.mktemp("slurm"), *options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and two nodes without accounting, one cluster for each of xdist's workers."""
    yield from started(tmp_path_factory)


@pytest.fixture(scope="module")
def accounting_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same with slurmdbd: sacct, QOS and associations. Account `demo`."""
    yield from started(tmp_path_factory, ["--account"])


@pytest.fixture(scope="module")
def container_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without accounting, with srun's options for containers: an image is a folder (see tests/slurm/container.c)."""
    need_slurm()
    plugin = compiled_plugin(tmp_path_factory.mktemp("spank"))
    yield from started(tmp_path_factory, ["--spank", str(plugin)])


def compiled_plugin(folder: Path) -> Path:
    """What gives srun its options for containers."""
    plugin = folder / "container.so"
    compiler = ["sh", "-c", 'cc -shared -fPIC -o "$0" "$1"', plugin, SCRIPTS / "container.c"]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if compiled.returncode:
        _missing(f"a compiler and Slurm's headers are needed: {compiled.stderr}")
    return plugin


@pytest.fixture(scope="module")
def confined_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes of this machine's own CPUs; a job sees those alone that it asked for."""
    yield from started(tmp_path_factory, ["--confined"])
