"""`nemotron doctor` on a real Slurm of two nodes: what is ready passes, and each wrong line of a profile is told."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_support import Cluster

PROFILES = """
[cpu]
executor = "slurm"
partition = "batch"
nodes = 2
time = "00:10:00"

[gpu]
extends = "cpu"
gpus_per_node = 8

[typo]
extends = "cpu"
partition = "bacth"

[large]
extends = "cpu"
nodes = 9

[long]
extends = "cpu"
partition = "debug"
nodes = 1
time = "02:00:00"

[failing]
extends = "cpu"
setup_lines = ["exit 3"]
"""
H100 = "NVIDIA H100 80GB HBM3"
NVIDIA_SMI = f"#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo '{H100}, 81559, 580.65.06'; done\n"


def doctor(cluster: Cluster, *words: str, **environment: str) -> tuple[int, dict[tuple[str, str], Any]]:
    """Exit code, and the checks by group and name."""
    (cluster.shared / "env.toml").write_text(PROFILES)
    command = [sys.executable, "-m", "nemotron_app.main", "doctor", *words, "--json"]
    result = cluster.run("head", *command, env={"HF_TOKEN": "hf_" + "a1B" * 12, **environment})
    assert "Traceback" not in result.stderr, result.stderr
    checks = json.loads(result.stdout)["checks"]
    return result.returncode, {(check["group"], check["name"]): check for check in checks}


def failed(checks: dict[tuple[str, str], Any]) -> dict[str, str]:
    """What is said by name."""
    return {name: check["said"] for (_, name), check in checks.items() if check["state"] == "FAIL"}


def test_a_profile_that_fits_is_ready_and_both_nodes_see_each_other(slurm: Cluster) -> None:
    code, checks = doctor(slurm, "cpu", "--for", "super3", "sft", "-c", "tiny")
    assert (code, failed(checks)) == (0, {})
    assert checks["nodes", "srun"]["said"] == "2 of 2 answered"
    assert checks["nodes", "shared folder"]["said"] == "files of all 2 nodes are seen (all 2)"
    assert "back (all 2)" in checks["nodes", "names"]["said"]
    assert checks["nodes", "PyTorch"]["state"] == "PASS"
    assert checks["recipe", "dry run"]["state"] == "PASS"
    assert list((slurm.shared / ".nemotron" / "jobs").iterdir()) == []


def test_all_nodes_report_eight_gpus_of_80_gb(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    _, checks = doctor(slurm, "gpu", PATH=path)
    assert checks["nodes", "GPUs"]["said"] == f"8 x {H100}, 81559 MiB (all 2)"
    # what the driver is said to show, PyTorch does not find
    assert checks["nodes", "CUDA"]["said"] == "False, with driver 580.65.06 and 8 GPUs (all 2)"
    code, checks = doctor(slurm, "gpu", PATH=path.partition(":")[2])
    assert code == 1 and failed(checks)["GPUs"] == "8 wanted, found: nvidia-smi not found (all 2)"


@pytest.mark.parametrize(
    ("profile", "name", "said"),
    [
        ("typo", "partition", "partition 'bacth' does not exist"),
        ("large", "partition batch", "has 2 nodes, and the profile asks for 9"),
        ("long", "partition debug", "jobs end after 30:00, and the profile asks for 02:00:00"),
    ],
)
def test_what_slurm_would_refuse_is_told_before(slurm: Cluster, profile: str, name: str, said: str) -> None:
    code, checks = doctor(slurm, profile)
    assert code == 1
    assert failed(checks)[name] == said
    if profile != "long":  # a job over the partition's time is taken, and waits for ever
        assert failed(checks)["a job like this"].startswith("Slurm refuses the job here: ")
        assert checks["nodes", "nodes"]["state"] == "SKIP"


def test_nodes_that_are_taken_are_a_warning_and_nothing_stays_in_the_queue(slurm: Cluster) -> None:
    slurm.wait_for(slurm.script("sleep 600", "--nodes=2", "--exclusive"), "RUNNING")
    code, checks = doctor(slurm, "cpu", "--wait", "2")
    assert code == 0
    assert "not free within 2 s" in checks["nodes", "srun"]["said"]
    slurm.wait_until(lambda: "nemotron-doctor" not in slurm.checked("head", "squeue", "-h", "-o", "%j"))
    slurm.clear()


def test_a_start_line_that_fails_on_the_nodes_is_told(slurm: Cluster) -> None:
    code, checks = doctor(slurm, "failing")
    assert code == 1
    assert failed(checks)["srun"].startswith("0 of 2 answered: srun: error: ")


@pytest.mark.slow
def test_a_queue_that_takes_one_job_of_a_user_is_told(accounting_slurm: Cluster) -> None:
    cluster = accounting_slurm
    for words in (
        "add qos dbg",
        "modify qos dbg set MaxJobsPerUser=1 MaxTRESPerJob=node=1",
        "modify user root set qos+=dbg",
    ):
        cluster.checked("head", "sacctmgr", "-i", *words.split())
    debug = PROFILES.replace('partition = "batch"', 'partition = "batch"\naccount = "demo"\nqos = "dbg"')
    (cluster.shared / "dbg.toml").write_text(debug)
    variables = {"NEMOTRON_ENV_FILE": str(cluster.shared / "dbg.toml")}
    code, checks = doctor(cluster, "cpu", "--no-nodes", **variables)
    assert code == 1
    assert failed(checks)["qos dbg"] == "MaxTRES is node=1, and the profile asks for 2"
    job = cluster.script("sleep 600", "--account=demo", "--qos=dbg")
    cluster.wait_for(job, "RUNNING")
    code, checks = doctor(cluster, "long", "--no-nodes", **variables)
    assert checks["scheduler", "qos dbg"]["state"] == "WARN"
    assert f"you have 1 there: {job}; the next one waits" in checks["scheduler", "qos dbg"]["said"]
    (cluster.shared / "dbg.toml").write_text(debug.replace('"demo"', '"dem"'))
    code, checks = doctor(cluster, "cpu", "--no-nodes", **variables)
    assert "root has no account 'dem'" in failed(checks)["account"]
    cluster.clear()
