"""What a real Slurm prints and says of jobs that fail, read by the rules of `nemotron diagnose`."""

from pathlib import Path

import pytest
from slurm_support import Cluster

from nemotron_cluster.diagnose.causes import Diagnosis, Facts, diagnose
from nemotron_cluster.diagnose.logs import read_logs
from nemotron_cluster.slurm.scheduler import find_job

OVER = ("FAILED", "CANCELLED", "COMPLETED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--partition=nowhere"], "slurm-wrong-partition"),
        (["--gpus-per-node=9"], "slurm-impossible-request"),
        (["--constraint=nothing-has-it"], "slurm-impossible-request"),
        (["--mpi=nothing"], "slurm-mpi"),
        (["--container-image=nvcr.io#nvidia/nemo:26.02"], "container-not-supported"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_refusals_are_known(slurm: Cluster, options: list[str], rule: str, tmp_path: Path) -> None:
    refused = slurm.run("head", "srun", *options, "true")
    assert refused.returncode
    (tmp_path / "log.txt").write_text(refused.stderr)
    assert diagnose(read_logs(tmp_path), None).findings[0].rule.id == rule, refused.stderr


def ended(slurm: Cluster, job: str, folder: Path) -> Diagnosis:
    """What is said of a job that is over, by its log and by Slurm."""
    slurm.wait_for(job, *OVER)
    known = find_job(lambda command: slurm.run("head", *command), job)
    assert known is not None
    (folder / "log.txt").write_text(slurm.output(job))
    raw = {"state": known.state, "reason": known.reason, "exit_code": known.exit_code, "signal": known.signal}
    return diagnose(read_logs(folder), Facts(known.condition, known.source, **raw))


@pytest.mark.parametrize(
    ("body", "options", "rule"),
    [
        ("srun program-of-nowhere", [], "command-not-found"),
        ("srun sh -c 'kill -9 $$'; exit 137", [], "killed"),
        ("true", ["--output=/nowhere/at/all/%j.out"], "fact-launch-failed"),
        ("srun bash -c 'set -u; echo $WORKSPACE_OF_NOBODY'", [], "unbound-variable"),
    ],
    ids=["program", "kill", "output", "variable"],
)
def test_ends_are_known(slurm: Cluster, body: str, options: list[str], rule: str, tmp_path: Path) -> None:
    found = ended(slurm, slurm.script(body, *options), tmp_path)
    assert found.failed
    assert found.findings[0].rule.id == rule, [found.facts, found.findings, found.logs.texts]


def test_a_cancelled_job_is_known(slurm: Cluster, tmp_path: Path) -> None:
    job = slurm.script("srun sleep 1000")
    slurm.wait_for(job, "RUNNING")
    slurm.checked("head", "scancel", job)
    found = ended(slurm, job, tmp_path)
    assert found.findings[0].rule.id == "fact-cancelled"


@pytest.mark.slow
def test_a_lost_node_is_known(slurm: Cluster, tmp_path: Path) -> None:
    job = slurm.script("srun --unbuffered sh -c 'hostname; sleep 1000'", "--nodes=2", "--no-requeue")
    # a job that loses its node while srun still starts it says so in other words
    slurm.wait_until(lambda: set(slurm.output(job).split()) == {"n1", "n2"})
    slurm.lose("n2")
    found = ended(slurm, job, tmp_path)
    slurm.bring_back("n2")
    assert found.findings[0].rule.id == "slurm-node-fail"
