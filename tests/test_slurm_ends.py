"""What two nodes train is the same, whatever ends their job: a time limit, a preemption, a lost node."""

import json
import os
import signal
from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster

pytestmark = pytest.mark.slow

STEPS = 60
LONG = (
    *("-c", "tiny", f"train.train_iters={STEPS}", "train.eval_interval=30", "train.eval_rows=8"),
    *("checkpoint.save_interval=10", "logger.log_interval=1", "logger.tensorboard=false"),
    *("data_prep.synthetic_chats=400",),
)
TRAIN = ("super3", "sft", *LONG, "run.data=super3-sft-data:v1")


def losses(desk: Desk) -> dict[int, float]:
    """The loss of each step of the finished model, in the attempt that counts."""
    path = desk.folder / "store/artifacts/super3-sft-model/v1/metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.fixture(scope="module")
def uninterrupted(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, dict[int, float]]:
    desk = Desk(slurm, tmp_path_factory.mktemp("whole").name)
    assert desk.wait(desk.batch("super3", "data", "prep", "sft", *LONG)) == 0
    assert desk.wait(desk.batch(*TRAIN)) == 0
    return desk, losses(desk)


def begun(slurm: Cluster, name: str, before: Desk) -> tuple[Desk, str]:
    """The same training in a store of its own, as far as its first checkpoint."""
    desk = Desk(slurm, name)
    slurm.checked("head", "mkdir", "-p", desk.folder / "store/artifacts")
    slurm.checked(
        "head", "cp", "-r", before.folder / "store/artifacts/super3-sft-data", desk.folder / "store/artifacts"
    )
    job = desk.batch(*TRAIN)
    slurm.wait_until(lambda: "step 15/" in desk.log(job), minutes=10)
    return desk, job


def minutes_run(slurm: Cluster, job: str) -> int:
    """Whole minutes that a job has run."""
    seconds = 0
    for part in slurm.checked("head", "squeue", "-h", "-j", job, "-o", "%M").replace("-", ":").split(":"):
        seconds = 60 * seconds + int(part)  # minutes:seconds, hours before them; no test runs for days
    return seconds // 60


@pytest.mark.parametrize("end", ["warning", "time limit", "preemption", "node loss", "scancel"])
def test_what_two_nodes_train_is_the_same_whatever_ends_their_job(
    slurm: Cluster, uninterrupted: tuple[Desk, dict[int, float]], tmp_path: Path, end: str
) -> None:
    whole, expected = uninterrupted
    assert sorted(expected) == list(range(1, STEPS + 1))
    desk, job = begun(slurm, tmp_path.name, whole)
    if end == "warning":  # what Slurm sends before a time limit
        slurm.checked("head", "scancel", "--batch", "--signal=USR1", job)
    elif end == "time limit":  # which so short a training would not meet: its processes stand still until then
        ranks = desk.processes("stages.sft.train")
        assert len(ranks) >= 2
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        # set when it trains: how long a loaded machine takes to start, nobody knows
        limit = minutes_run(slurm, job) + 2
        slurm.checked("head", "scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
        slurm.wait_until(lambda: "asking the step to save" in desk.log(job))
        for rank in ranks:
            os.kill(rank, signal.SIGCONT)
        slurm.wait_until(lambda: "queued again" in desk.log(job))
        slurm.checked("head", "scontrol", "update", f"JobId={job}", "TimeLimit=30")  # or a slow machine never starts
    elif end == "scancel":
        slurm.checked("head", "scancel", job)
        assert desk.wait(job) == 130
        slurm.wait_until(lambda: not slurm.checked("head", "squeue", "-h"))
        job = desk.batch(*TRAIN)
    elif end == "preemption":
        slurm.script("sleep 5", "-N2", "--exclusive", "--partition=urgent")
    else:
        slurm.lose("n2")
        slurm.wait_until(lambda: slurm.state(job) != "RUNNING", minutes=10)
        slurm.bring_back("n2")
    assert desk.wait(job, minutes=20) == 0
    log = desk.log(job)
    assert ("attempt 2" in log) == (end != "scancel") and "continuing from step" in log
    assert losses(desk) == expected
    assert not (desk.job(job) / "secrets").exists()
