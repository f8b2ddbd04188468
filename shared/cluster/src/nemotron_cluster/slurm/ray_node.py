"""One task of a Ray cluster inside a Slurm job, started by ray.sh. Requires no package except Ray.

    python ray_node.py head LOGS PEER PORT      PEER: a node that must be able to reach this one
    python ray_node.py worker LOGS
    python ray_node.py driver LOGS NODES GPUS COMMAND...

Ray's processes detach from their parents, so Slurm loses track of them if it follows parents (proctrack/linuxproc).
Each task therefore becomes the subreaper of its orphans, and kills them when it ends.

srun forwards signals to every process of a task, except SIGTERM, on which it kills them. Therefore SIGUSR1 asks the
driver to save, SIGUSR2 ends head and workers, and Ray and the driver are started with both ignored.
"""

import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

STARTED = "STARTED_RAY_HEAD"
"""File in the job's log folder: the head's address, once it responds."""
PATIENCE = float(os.environ.get("NEMOTRON_RAY_PATIENCE", "1800"))
"""Seconds for all nodes to join: images have to be pulled, and Ray loads slowly from slow disks."""
ATTEMPTS = 3
END_SECONDS = 5.0
"""Seconds before SIGKILL. Ray's processes have nothing to save, and `ray start` sometimes ignores SIGTERM."""
PR_SET_CHILD_SUBREAPER = 36


class Ended(BaseException):
    """The job's script or Slurm requested the end."""


def main(role: str, folder: str, *rest: str) -> int:
    """Run one task; returns its exit code."""
    if find_spec("ray") is None:
        what = f"Ray is not installed for {sys.executable}"
        return failed(f"{what}: install it, or let the profile's `python` name another")
    logs = Path(folder)
    if role == "count":
        return count(rest[0], int(rest[1]), int(rest[2]))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        if role == "driver":
            return drive(logs, int(rest[0]), int(rest[1]), rest[2:])
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, _end)
        own = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, because paths of Unix sockets have at most 107 bytes
        try:
            return lead(logs, own, rest[0], int(rest[1])) if role == "head" else join(logs, own)
        finally:
            take_along()
            shutil.rmtree(own, ignore_errors=True)
    except Ended:
        return 0
    finally:
        take_along()


def lead(logs: Path, own: str, peer: str, first: int) -> int:
    """Run the head until the end."""
    address, port = address_towards(peer), free_port(first)
    options = ["--head", f"--port={port}", "--include-dashboard=false"]
    if find_spec("grpc"):  # then Ray serves remote clients at a fixed port, which another job may be using
        options.append(f"--ray-client-server-port={free_port(port + 1)}")

    def answers() -> bool:
        if not reachable(address, port):
            return False
        unfinished = logs / f".{STARTED}.tmp"
        unfinished.write_text(f"{address}:{port}")
        unfinished.replace(logs / STARTED)
        return True

    return keep_ray(address, own, options, answers)


def join(logs: Path, own: str) -> int:
    """Run a worker until the end."""
    head = address_of_head(logs)
    host, port = head.split(":")
    end = time.monotonic() + 120
    while not reachable(host, int(port)):
        if time.monotonic() > end:
            return failed(f"the Ray head at {head} is not to be reached: does a firewall stand between the nodes?")
        time.sleep(0.5)
    return keep_ray(address_towards(host), own, [f"--address={head}"], lambda: True)


def keep_ray(address: str, own: str, options: Sequence[str], begun: Callable[[], bool]) -> int:
    """Run `ray start`, with retries because it can fail on a busy machine. Returns only after it has failed."""
    node = [f"--node-ip-address={address}", f"--temp-dir={own}", "--dashboard-agent-listen-port=0", "--block"]
    cpus = os.environ.get("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0))  # CPUs of this job
    node += [f"--num-cpus={cpus}", "--disable-usage-stats"]
    if gpus := os.environ.get("SLURM_GPUS_ON_NODE"):
        node.append(f"--num-gpus={gpus}")
    for attempt in range(1, ATTEMPTS + 1):
        say(f"{socket.gethostname()} ({address}): starting Ray, attempt {attempt} of {ATTEMPTS}")
        ray = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *node, *options], preexec_fn=_deaf
        )
        while not (up := begun()) and ray.poll() is None:
            time.sleep(0.2)
        code = ray.wait()
        take_along()
        if up and "--head" in options:  # the cluster is lost with it
            break
        time.sleep(2)
    return failed(f"Ray has ended with code {code} in attempt {attempt}; its own words stand above")


def drive(logs: Path, nodes: int, gpus: int, command: Sequence[str]) -> int:
    """Wait for all nodes, then run the driver; returns its exit code."""
    child: subprocess.Popen[bytes] | None = None
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        if child is None:
            sys.exit(128 + signal.SIGTERM)
        child.terminate()

    signal.signal(signal.SIGUSR1, ask)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # Slurm sends it to the driver, too
    head = address_of_head(logs)
    count = [sys.executable, __file__, "count", str(logs), head, str(nodes), str(gpus)]
    for step in (count, command):
        child = subprocess.Popen(step, env=os.environ | {"RAY_ADDRESS": head}, preexec_fn=_deaf)
        if asked:
            child.terminate()
        if code := child.wait():
            break
    if asked and child.args == count:
        code = 128 + signal.SIGTERM
    return 128 - code if code < 0 else code


def count(head: str, nodes: int, gpus: int) -> int:
    """Report joined nodes until all are up; returns 0."""
    import ray

    end = time.monotonic() + PATIENCE
    last = ""
    while time.monotonic() < end:
        try:
            if not ray.is_initialized():
                ray.init(address=head, log_to_driver=False, logging_level=logging.CRITICAL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's own handler prints a stack trace
            there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        except Exception as error:  # Ray raises bare exceptions on timeouts
            with suppress(Exception):
                ray.shutdown()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            last = show(f"the Ray head at {head} does not answer yet: {reason}", last)
            time.sleep(1)
            continue
        have = int(sum(each.get("GPU", 0) for each in there))
        cpus = int(sum(each.get("CPU", 0) for each in there))
        last = show(f"Ray: {len(there)} of {nodes} nodes, {have} of {gpus} GPUs, {cpus} CPUs", last)
        if len(there) >= nodes and have >= gpus:
            ray.shutdown()
            return 0
        time.sleep(0.5)
    return failed(f"not all nodes have joined in {PATIENCE:.0f} s: their reasons are in logs/")


def address_of_head(logs: Path) -> str:
    """Wait for the head to write its address. If the head dies, the job's script ends this process."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        list(logs.iterdir())  # refreshes NFS's directory cache
        with suppress(FileNotFoundError):
            return (logs / STARTED).read_text()
        time.sleep(0.5)
    sys.exit(failed(f"the Ray head has not started in {PATIENCE:.0f} s: see head.log"))


def address_towards(peer: str) -> str:
    """This machine's address on the route to another one; its own host name may resolve to 127.0.1.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((peer, 9))  # sends nothing
        return way.getsockname()[0]


def free_port(first: int) -> int:
    """The first free port from `first` on: another job may run Ray on this node."""
    for port in range(first, first + 1000):
        with socket.socket() as attempt, suppress(OSError):
            attempt.bind(("", port))
            return port
    raise OSError(f"no free port from {first} on")


def reachable(host: str, port: int) -> bool:
    """Whether the address accepts connections."""
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


def take_along() -> None:
    """Terminate all descendants of this process, with SIGTERM and then SIGKILL."""
    asked = False
    end = time.monotonic() + END_SECONDS
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = descendants(os.getpid())
        if not left:
            return
        late = time.monotonic() > end
        for process in left if late or not asked else []:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        asked = True
        time.sleep(0.2)


def descendants(root: int) -> list[int]:
    """Processes below this one. Orphans are its children, because it is a subreaper."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(entry.parent.name)] = int(fields[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def show(line: str, last: str) -> str:
    """Print a line unless it repeats the last one."""
    if line != last:
        say(line)
    return line


def failed(line: str) -> int:
    """Print an error in the format that ray.sh looks for."""
    say(f"error: {socket.gethostname()}: {line}")
    return 1


def say(line: str) -> None:
    """Print to the log of this role."""
    print(line, flush=True)


def _deaf() -> None:
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: object) -> NoReturn:
    for each in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Ended


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
