"""A task of the Ray cluster: what it starts, whom it waits for, and that it takes along every process, orphans too.

Ray is a stand-in here, which leaves a daemon behind as the real one does; tests/test_ray_slurm.py has the real one.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from jobs import wait_for

from nemotron_cluster.slurm import ray_node

START = """
import os, re, signal, socket, subprocess, sys, time
words = sys.argv[1:]
with open(os.environ["RECORD"], "a") as record:
    record.write(" ".join(words) + "\\n")
daemon = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
daemon += "; print(os.getpid(), flush=True); time.sleep(900)"
if os.fork() == 0:
    os.setsid()
    with open(os.environ["RECORD"] + ".daemon", "w") as out:
        subprocess.Popen([sys.executable, "-c", daemon], stdout=out)
    os._exit(0)
os.wait()
if "fail" in os.environ["RECORD"]:
    sys.exit(4)
found = re.search(r"--port=(\\d+)", " ".join(words))
if found:
    server = socket.create_server(("127.0.0.1", int(found[1])))
time.sleep(900)
"""
JOINING = """
import os, time
times = 0
def init(**settings):
    global times
    times += 1
    if times < 2:
        raise Exception("too slow")
def is_initialized():
    return times > 1
def shutdown():
    pass
def nodes():
    global times
    times += 1
    return [{"Alive": True, "Resources": {"GPU": 4.0, "CPU": 2.0}}] * min(times - 2, 2)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    ray = tmp_path / "modules/ray"
    (ray / "scripts").mkdir(parents=True)
    (ray / "__init__.py").write_text(JOINING)
    (ray / "scripts/__init__.py").touch()
    (ray / "scripts/scripts.py").write_text(START)
    (tmp_path / "logs").mkdir()
    own = {"PYTHONPATH": str(ray.parent), "RECORD": str(tmp_path / "record"), "SLURM_CPUS_ON_NODE": "3"}
    return {name: value for name, value in os.environ.items() if "SLURM" not in name} | own


def task(environment: dict[str, str], logs: Path, role: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, ray_node.__file__, role, str(logs), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_head_tells_its_address_and_takes_everything_along(tmp_path: Path, environment: dict[str, str]) -> None:
    head = task(environment | {"SLURM_GPUS_ON_NODE": "4"}, tmp_path / "logs", "head", "localhost", "6900")
    wait_for((tmp_path / "logs" / ray_node.STARTED).exists)
    address = (tmp_path / "logs" / ray_node.STARTED).read_text()
    words = (tmp_path / "record").read_text().split()
    assert {f"--port={address.split(':')[1]}", "--head", "--num-cpus=3", "--num-gpus=4", "--block"} <= set(words)
    assert address.startswith("127.") and f"--node-ip-address={address.split(':')[0]}" in words
    daemon = int(wait_for((tmp_path / "record.daemon").read_text))
    folder = Path(next(word for word in words if word.startswith("--temp-dir=")).split("=")[1])
    assert folder.is_dir() and len(str(folder)) < 25
    head.send_signal(signal.SIGUSR1)  # which is for drivers
    head.send_signal(signal.SIGUSR2)
    assert head.wait(timeout=300) == 0
    assert not folder.exists()
    assert not Path(f"/proc/{daemon}").exists(), "an orphan was left"


def test_a_worker_tries_again_and_says_when_it_cannot_join(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "logs" / ray_node.STARTED).write_text("127.0.0.1:1")
    environment["RECORD"] = str(tmp_path / "fail")
    code = f"""
import sys; sys.path.insert(0, {str(Path(ray_node.__file__).parent)!r}); import ray_node
ray_node.reachable = lambda host, port: True
sys.exit(ray_node.main("worker", {str(tmp_path / "logs")!r}))"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (tmp_path / "fail").read_text().count("--address=127.0.0.1:1") == ray_node.ATTEMPTS
    assert "Ray has ended with code 4 in attempt 3" in done.stdout.splitlines()[-1]
    assert done.stdout.splitlines()[-1].startswith("error: ")


def test_a_driver_waits_for_all_nodes(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "logs" / ray_node.STARTED).write_text("10.77.0.11:6379")
    code = "import os, sys; print('driver at', os.environ['RAY_ADDRESS'], sys.argv[1:]); sys.exit(5)"
    driver = task(environment, tmp_path / "logs", "driver", "2", "8", sys.executable, "-c", code, "a b")
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode == 5
    assert said.splitlines() == [
        "the Ray head at 10.77.0.11:6379 does not answer yet: too slow",
        "Ray: 1 of 2 nodes, 4 of 8 GPUs, 2 CPUs",
        "Ray: 2 of 2 nodes, 8 of 8 GPUs, 4 CPUs",
        "driver at 10.77.0.11:6379 ['a b']",
    ]


def test_a_driver_is_told_once_and_leaves_nobody(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "logs" / ray_node.STARTED).write_text("10.77.0.11:6379")
    code = """
import os, signal, subprocess, sys, time
def told(number, frame):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, told)
child = subprocess.Popen(["setsid", "--fork", "sleep", "900"])
child.wait()
print("driving", flush=True)
time.sleep(900)"""
    driver = task(environment, tmp_path / "logs", "driver", "1", "4", sys.executable, "-c", code)
    assert driver.stdout is not None
    while "driving" not in driver.stdout.readline():
        pass
    for process in [driver.pid, *ray_node.descendants(driver.pid)]:  # srun passes it on to all
        with suppress(ProcessLookupError):  # `setsid --fork` itself has just ended
            os.kill(process, signal.SIGUSR1)
    rest = driver.stdout.read()  # ends with the last process that has it open, the sleep included
    assert driver.wait(timeout=300) == 130
    assert rest == "saved\n"


def test_a_driver_whose_cluster_is_not_there_yet_can_be_told(tmp_path: Path, environment: dict[str, str]) -> None:
    driver = task(environment, tmp_path / "logs", "driver", "1", "0", "never")
    time.sleep(1)
    driver.send_signal(signal.SIGUSR1)
    assert abs(driver.wait(timeout=300)) in (128 + signal.SIGTERM, signal.SIGUSR1)  # before or after it listens


def test_a_python_without_ray_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", ray_node.__file__, "worker", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: " in done.stdout and f"Ray is not installed for {sys.executable}" in done.stdout
