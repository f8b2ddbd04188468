"""What jobs ask for, on nodes that show a job no more CPUs than it asked for."""

import os
from pathlib import Path

import pytest
from slurm_jobs import Desk
from slurm_support import Cluster

pytestmark = pytest.mark.slow

PREPARE = ("super3", "data", "prep", "pretrain", "-c", "tiny", "data_prep.source=mine.jsonl", "data_prep.shard_mb=1")
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture
def desk(confined_slurm: Cluster, tmp_path: Path) -> Desk:
    if CPUS < 2:
        pytest.skip("a machine of one CPU has none to hide from a job")
    desk = Desk(confined_slurm, tmp_path.name)
    rows = (f'{{"text": "Row {number} tells of a goat that walks over a hill."}}\n' for number in range(20_000 * CPUS))
    (desk.folder / "mine.jsonl").write_text("".join(rows))  # more than 1 MB for each CPU
    return desk


def cpus_of(desk: Desk, job: str) -> str:
    shown = desk.cluster.checked("head", "scontrol", "show", "job", job)
    return shown.partition("NumCPUs=")[2].split()[0]


def test_a_job_that_asks_for_one_cpu_sees_one(desk: Desk) -> None:
    job = desk.batch(*PREPARE, "run.env.cpus_per_task=1")
    assert desk.wait(job) == 0, desk.log(job)
    assert cpus_of(desk, job) == "1"
    assert ", 1 worker\n" in desk.log(job)


def test_data_preparation_has_all_cpus_of_its_node_unless_workers_are_counted(desk: Desk) -> None:
    job = desk.batch(*PREPARE)
    assert desk.wait(job) == 0, desk.log(job)
    assert cpus_of(desk, job) == str(CPUS)
    assert f", {CPUS} workers\n" in desk.log(job)
    counted = desk.batch(*PREPARE, "data_prep.workers=1", "--force")
    assert desk.wait(counted) == 0, desk.log(counted)
    assert cpus_of(desk, counted) == "1"


def test_ray_offers_what_the_nodes_have(desk: Desk) -> None:
    small = "[test-slurm.env_vars]\nRAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES = '200000000'\n"
    file = desk.folder / "env.toml"
    file.write_text(file.read_text().replace("[test-slurm.env_vars]\n", small))
    job = desk.batch(*PREPARE, "--executor", "ray")
    assert desk.wait(job, minutes=20) == 0, desk.log(job)
    assert f"Ray: 2 of 2 nodes, 0 of 0 GPUs, {2 * CPUS} CPUs" in desk.log(job)


def test_a_dry_run_says_what_is_asked_for_and_what_the_partition_gives(desk: Desk) -> None:
    shown = desk.run(*PREPARE, "--run", "test-slurm", "--dry-run").stdout
    assert "\nCPUs per node: all\nmemory per node: all\nwhole nodes: yes (" in shown
    assert f"\npartition batch: nodes of {CPUS} CPUs and 20,000 MB; DefMemPerCPU=200 MB; OverSubscribe=NO\n" in shown
