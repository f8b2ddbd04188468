"""Ray over the two nodes of a Slurm: the bytes that one process makes, and nothing left, however a job ends."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster

from nemotron_cluster.job import Job
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm.script import render

pytestmark = pytest.mark.slow

# One CPU on each node, and a small part of its memory.
SMALL = 'cpus_per_task = 1\n[test-slurm.env_vars]\nRAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES = "200000000"\n'
PREPARE = ("super3", "data", "prep", "pretrain", "-c", "tiny", "data_prep.shard_mb=1", "data_prep.merge=true")
ON_RAY = ("--executor", "ray", "--workers", "2")
STUBBORN = """
import signal, sys, time
import ray
ray.init(log_to_driver=False)
told = 0
def tell(number, frame):
    global told
    told += 1
    if told > 1:
        sys.exit(130)
    print("told, with", ray.get(ray.put("Ray")), flush=True)
signal.signal(signal.SIGTERM, tell)
print("driver begun on", len(ray.nodes()), flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Ray's modules as bytecode: each of its processes would compile them anew, which takes minutes."""
    spec = find_spec("ray")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    if not list(folder.rglob("_private/**/node.*.pyc")):
        subprocess.run([sys.executable, "-m", "compileall", "-q", folder], check=False)


@pytest.fixture
def desk(slurm: Cluster, tmp_path: Path) -> Desk:
    desk = Desk(slurm, tmp_path.name)
    text = (desk.folder / "env.toml").read_text()
    (desk.folder / "env.toml").write_text(text.replace("[test-slurm.env_vars]\n", SMALL))
    return desk


def corpus(folder: Path, rows: int) -> str:
    path = folder / "corpus.jsonl"
    line = "bread and rivers " * 60
    path.write_text("".join(json.dumps({"text": f"Row {row} tells of {line}."}) + "\n" for row in range(rows)))
    return f"data_prep.source={path}"


def digest(desk: Desk, version: str) -> str:
    return json.loads((desk.folder / f"store/artifacts/super3-pretrain-data/{version}/manifest.json").read_text())[
        "digest"
    ]


def nothing_is_left(slurm: Cluster, folder: Path) -> None:
    """No process on a node, no folder of Ray's, no token; and logs that tell of folders there were."""
    slurm.wait_until(lambda: not slurm.checked("head", "squeue", "-h"))
    own = {"node.sh", "bash", "slurmd", "sleep", "ps"}  # what a node consists of, and this very question
    slurm.wait_until(
        lambda: not set("\n".join(slurm.checked(node, "ps", "-eo", "comm=") for node in ("n1", "n2")).split()) - own, 1
    )
    logs = "".join(path.read_text() for path in (folder / "logs").glob("*.log"))
    folders = set(re.findall(r"/tmp/ray-\w+", logs))
    assert len(folders) >= 2
    assert not [each for each in folders if Path(each).exists()]
    assert not (folder / "secrets").exists()
    assert (folder / "logs/ENDED").exists()


def test_data_over_two_nodes_has_the_bytes_of_one_process(slurm: Cluster, desk: Desk) -> None:
    source = corpus(desk.folder, 3000)
    here = desk.run(*PREPARE, source)
    assert here.returncode == 0, here.stderr
    job = desk.batch(*PREPARE, source, *ON_RAY, "--force")
    assert desk.wait(job) == 0, desk.log(job)
    log = desk.log(job)
    assert "Ray: 2 of 2 nodes, 0 of 0 GPUs, 2 CPUs" in log
    assert "joined the Ray cluster at 10.77.0.11" in log
    assert digest(desk, "v2") == digest(desk, "v1")
    logs = desk.job(job) / "logs"
    assert "published super3-pretrain-data:v2" in (logs / "driver.log").read_text()
    assert {path.name for path in logs.iterdir()} == {
        "head.log", "worker-0.log", "driver.log", "STARTED_RAY_HEAD", "ENDED"
    }  # fmt: skip
    nothing_is_left(slurm, desk.job(job))


def test_the_failure_of_the_driver_is_that_of_the_job(slurm: Cluster, desk: Desk) -> None:
    # past the rows that are read before a job is submitted
    (desk.folder / "corpus.jsonl").write_text('{"text": "whole"}\n' * 40 + '{"text": \n')
    bad = (f"data_prep.source={desk.folder / 'corpus.jsonl'}", "data_prep.on_bad_row=error")
    here = desk.run(*PREPARE, *bad)
    job = desk.batch(*PREPARE, *bad, *ON_RAY)
    assert desk.wait(job) == here.returncode != 0
    assert "corpus.jsonl:41" in desk.log(job)
    nothing_is_left(slurm, desk.job(job))


@pytest.mark.parametrize("end", ["cancelled", "told to save"])
def test_data_that_is_stopped_continues(slurm: Cluster, desk: Desk, end: str) -> None:
    source = corpus(desk.folder, 20000)
    job = desk.batch(*PREPARE, source, *ON_RAY)
    slurm.wait_until(lambda: "joined the Ray cluster" in desk.log(job), minutes=10)
    if end == "cancelled":
        slurm.checked("head", "scancel", job)
        assert desk.wait(job) == 130
    else:
        slurm.checked("head", "scancel", "--batch", "--signal=USR1", job)
        assert desk.wait(job) == 0, desk.log(job)
        assert "queued again" in desk.log(job) and "attempt 2" in desk.log(job)
        assert "published super3-pretrain-data:v1" in desk.log(job)
    nothing_is_left(slurm, desk.job(job))


def laid_out(slurm: Cluster, folder: Path) -> Callable[[], str]:
    """A job's folder with a driver that does not end; what submits it."""
    own = folder / "code/nemotron_cluster/slurm"
    own.mkdir(parents=True)
    source = Path(render.__code__.co_filename).parent / "ray_node.py"
    (own / source.name).write_bytes(source.read_bytes())
    small = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "200000000"}
    job = Job("ray", ("-c", STUBBORN), sys.executable, start="ray", nodes=2, gpus_per_node=4, environment=small)
    script = render(job, Slurm(executor="slurm", time="30", cpus_per_task=1, requeue=False), PurePosixPath(folder))
    (folder / "job.sh").write_text(script)
    (folder / "log.txt").touch()
    return lambda: slurm.checked("head", "sbatch", "--parsable", "--export=NONE", folder / "job.sh")


@pytest.mark.parametrize("hidden", ["", "logs"])
def test_a_node_with_another_folder_of_that_name_is_named(slurm: Cluster, tmp_path: Path, hidden: str) -> None:
    folder = slurm.shared / tmp_path.name
    submit = laid_out(slurm, folder)
    (folder / hidden).mkdir(exist_ok=True)
    slurm.checked("n2", "mount", "-t", "tmpfs", "tmpfs", folder / hidden)
    try:
        slurm.checked("n2", "mkdir", "-p", folder / "logs/.canaries" if hidden else folder / "other")
        number = submit()
        slurm.wait_until(lambda: (folder / "exit_code").exists(), minutes=10)
        slurm.wait_for(number, "FAILED")
    finally:
        slurm.checked("n2", "umount", folder / hidden)
    said = (folder / "log.txt").read_text()
    assert (folder / "exit_code").read_text() == "1\n"
    assert re.search(
        r"error: n1 does not find in the shared folder \S+ what these nodes should have written: n2\n", said
    )
    assert ("srun says: " in said) == (not hidden), "a folder of the node's own can be written"
    assert "Ray: starting" not in said


def test_a_driver_has_its_cluster_while_it_saves_and_ends_with_the_time_limit(slurm: Cluster, tmp_path: Path) -> None:
    folder = slurm.shared / tmp_path.name
    submit = laid_out(slurm, folder)
    number = submit()

    def said(words: str) -> bool:
        return words in (folder / "log.txt").read_text()

    slurm.wait_for(number, "RUNNING")
    slurm.wait_until(lambda: said("driver begun on 2"), minutes=10)
    assert said("Ray: 2 of 2 nodes, 8 of 8 GPUs")
    slurm.checked("head", "scancel", "--batch", "--signal=USR1", number)
    slurm.wait_until(lambda: said("told, with Ray"), minutes=10)
    slurm.checked("head", "scontrol", "update", f"JobId={number}", "TimeLimit=1")
    assert slurm.wait_for(number, "TIMEOUT", "FAILED", "COMPLETED", minutes=10) == "TIMEOUT"
    nothing_is_left(slurm, folder)
