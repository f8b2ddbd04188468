"""Jobs under NeMo-RL's ray.sub that are queued again, on a real Slurm: each attempt has a cluster and logs of its own.

NVIDIA's files are not in this repository. Without them, stand-ins do what matters here: where each version keeps its
logs, how it starts the driver, and what waits on the nodes for ENDED in that folder and then ends the cluster. With
checkouts of the versions, the same tests run their ray.sub, which takes some eight minutes for each:

    NEMO_RL_CHECKOUTS=/data/checkouts uv run pytest -n 0 -m slow tests/test_ray_sub_slurm.py

for /data/checkouts/nano-v3/ray.sub and /data/checkouts/v0.7.0/ray.sub. These need PMIx
(Debian's libpmix-dev). The command `ray` is a stand-in either way: what is tested is what ray.sub does with files.
"""

import os
import sys
from pathlib import Path, PurePosixPath

import pytest
from slurm_support import Cluster

from nemotron_cluster.job import Job
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm.script import render

pytestmark = pytest.mark.slow

CHECKOUTS = os.environ.get("NEMO_RL_CHECKOUTS")
WAIT = 75 if CHECKOUTS else 8
"""Seconds in which what waits on the nodes looks for ENDED at least once."""
FOLDERS = {
    "nano-v3": ["logs/{job}-logs", "logs/attempt-2/{job}-logs", "logs/attempt-3/{job}-logs"],
    "v0.7.0": ["logs/{job}-logs", "logs/attempt-2/{job}-1-logs", "logs/attempt-3/{job}-2-logs"],
}
STAND_IN = """#!/bin/bash
set -eu
LOG_DIR=$BASE_LOG_DIR/$SLURM_JOB_ID{again}-logs
mkdir -p "$LOG_DIR"
options=(--no-container-mount-home --container-mounts="$MOUNTS" --container-image="$CONTAINER"
    --container-workdir="$SLURM_SUBMIT_DIR" -p "$SLURM_JOB_PARTITION" -A "$SLURM_JOB_ACCOUNT" --nodes=1 --ntasks=1)
alone=(--cpus-per-task="$CPUS_PER_WORKER" --gres="gpu:$GPUS_PER_NODE")
wait_for_ended="(until [ -e $LOG_DIR/ENDED ]; do sleep 2; done; echo Detected ENDED; kill -TERM 0) & "
printf %s "$COMMAND" >"$LOG_DIR/driver_command.sh"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
srun "${options[@]}" "${alone[@]}" -w "${nodes[0]}" -o "$LOG_DIR/ray-head.log" bash -c "$wait_for_ended {head}" &
head=$!
srun "${options[@]}" "${alone[@]}" -w "${nodes[1]}" -o "$LOG_DIR/ray-worker-1.log" bash -c "$wait_for_ended wait" &
sleep 5 # a cluster is not there at once
kill -0 $head
{driver}
wait -n
"""
IN_A_TASK = '--overlap -w "${nodes[0]}" -o "$LOG_DIR/ray-driver.log" bash -c "$COMMAND" &'
VERSIONS = {
    "nano-v3": {"again": "", "head": "wait", "driver": f'srun "${{options[@]}}" {IN_A_TASK}'},
    "v0.7.0": {
        "again": "${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}",
        "head": "sleep 5; bash $LOG_DIR/driver_command.sh >$LOG_DIR/ray-driver.log 2>&1",
        "driver": "",
    },
}
RAY = """#!/bin/bash
# Ray's commands, as ray.sub uses them, without a cluster: a busy machine would not start one in Ray's 15 seconds.
case $1 in
    start) [[ " $* " != *" --block "* ]] || exec sleep infinity ;;
    status) echo " 0.0/16.0 worker_units" ;;
esac
"""
STEP = """
import os, signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
attempt, wait = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + 1, int(sys.argv[1])
time.sleep(wait)
print(f"step {attempt}/3: the cluster lives", flush=True)
while attempt < 3:
    time.sleep(1)
"""


def ray_sub(version: str, folder: Path) -> Path:
    if CHECKOUTS:
        found = Path(CHECKOUTS) / version / "ray.sub"
        assert found.is_file(), f"NEMO_RL_CHECKOUTS has no {version}/ray.sub"
        return found
    file, text = folder / "ray.sub", STAND_IN
    for name, words in VERSIONS[version].items():
        text = text.replace(f"{{{name}}}", words)
    file.write_text(text)
    return file


def image(folder: Path) -> Path:
    """A folder as the image, with this machine's programs by mounts."""
    folder.mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    return folder


@pytest.mark.parametrize("version", sorted(FOLDERS))
def test_a_job_under_ray_sub_is_queued_again_twice(container_slurm: Cluster, tmp_path: Path, version: str) -> None:
    folder = container_slurm.shared / tmp_path.name
    folder.mkdir()
    (folder / "log.txt").touch()
    (folder / "step.py").write_text(STEP)
    own = {path: f"{path}:{path}" for path in (sys.prefix, sys.base_prefix, "/usr", "/etc", "/tmp")}
    (folder / "ray").write_text(RAY)
    (folder / "ray").chmod(0o755)
    python = {"setup_lines": [f"export PATH={folder}:$PATH"]}
    profile = Slurm.model_validate({
        "executor": "slurm", "account": "demo", "partition": "batch", "time": "40", "mounts": list(own.values()),
        "ray_sub": str(ray_sub(version, folder)), **python,
    })  # fmt: skip
    command = (str(folder / "step.py"), str(WAIT))
    job = Job(
        "ray-sub", command, sys.executable, start="ray", nodes=2, gpus_per_node=8,
        container=str(image(tmp_path / "image")),
    )  # fmt: skip
    (folder / "job.sh").write_text(render(job, profile, PurePosixPath(folder)))
    number = container_slurm.checked("head", "sbatch", "--parsable", "--export=NONE", folder / "job.sh")

    def said() -> str:
        return (folder / "log.txt").read_text()

    for attempt in (1, 2):
        container_slurm.wait_until(
            lambda attempt=attempt: f"step {attempt}/3: the cluster lives" in said() or (folder / "exit_code").exists(),
            minutes=15,
        )
        assert f"step {attempt}/3: the cluster lives" in said(), said()
        container_slurm.checked("head", "scancel", "--batch", "--signal=USR1", number)
        container_slurm.wait_until(lambda attempt=attempt: f"attempt {attempt + 1}" in said(), minutes=15)
    container_slurm.wait_until(lambda: (folder / "exit_code").exists(), minutes=15)
    assert (folder / "exit_code").read_text() == "0\n", said()
    assert said().count("saved\n") == 2 and said().count("queued again: the next attempt continues") == 2
    for attempt, place in enumerate(FOLDERS[version], 1):
        logs = folder / place.format(job=number)
        assert f"step {attempt}/3" in (logs / "ray-driver.log").read_text()
        assert (logs / "ENDED").exists()
    assert [said().count(f"step {attempt}/3") for attempt in (1, 2, 3)] == [1, 1, 1]
    assert not (folder / "secrets").exists()
