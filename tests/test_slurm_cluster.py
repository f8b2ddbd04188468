"""The cluster that the tests of jobs run on is one: nodes of their own, that can be lost, and nothing that stays."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_support import SCRIPTS, Cluster, need_slurm


def test_two_nodes_with_names_addresses_and_processes_of_their_own(slurm: Cluster) -> None:
    said = slurm.checked("head", "srun", "--nodes=2", "--label", "sh", "-c", "echo $(hostname) $(hostname -I)")
    assert sorted(said.splitlines()) == ["0: n1 10.77.0.11", "1: n2 10.77.0.12"]
    for node in ("head", "n1", "n2"):
        assert slurm.checked(node, "hostname") == node
        assert int(slurm.checked(node, "sh", "-c", "ls -d /proc/[0-9]* | wc -l")) < 30


def test_nodes_reach_each_other_and_nothing_else(slurm: Cluster) -> None:
    assert slurm.checked("n1", "getent", "hosts", "n2").split() == ["10.77.0.12", "n2"]
    assert slurm.checked("n1", "getent", "hosts", "10.77.0.1").split() == ["10.77.0.1", "head"]
    assert slurm.checked("n1", "ip", "route") == "10.77.0.0/24 dev eth0 proto kernel scope link src 10.77.0.11"


def test_gpus_are_given_out(slurm: Cluster) -> None:
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert slurm.checked("head", "srun", "--gpus-per-node=3", *show) == "0,1,2"
    assert slurm.run("head", "srun", "--gpus-per-node=9", *show).returncode


def test_every_node_has_a_folder_of_its_own_for_ray(slurm: Cluster) -> None:
    slurm.checked("n1", "touch", "/tmp/ray/of-n1")
    assert slurm.checked("n2", "ls", "/tmp/ray") == ""
    assert not Path("/tmp/ray/of-n1").exists()


@pytest.mark.slow
def test_a_node_is_lost_and_comes_back(slurm: Cluster) -> None:
    job = slurm.script("srun --unbuffered sh -c 'hostname; sleep 1000'", "--nodes=2", "--requeue")
    # a job that loses its node while srun still starts it fails, and is not queued again
    slurm.wait_until(lambda: set(slurm.output(job).split()) == {"n1", "n2"})
    slurm.lose("n2")
    slurm.wait_for(job, "PENDING")
    assert "Restarts=1 " in slurm.checked("head", "scontrol", "show", "job", job)
    assert slurm.checked("head", "sinfo", "-h", "-p", "batch", "-n", "n2", "-o", "%T").startswith("down")
    slurm.clear()
    assert slurm.mend() == ["n2"]
    assert sorted(slurm.checked("head", "srun", "-N2", "hostname").split()) == ["n1", "n2"]


def processes(namespaces: set[str]) -> list[int]:
    """Processes of this machine that are in one of these network namespaces."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "ns" / "net").readlink()) in namespaces:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def networks(cluster: Cluster) -> set[str]:
    return {cluster.checked(node, "readlink", "/proc/self/ns/net") for node in ("head", "n1", "n2")}


def test_two_clusters_at_once_and_neither_leaves_a_process(tmp_path: Path, slurm: Cluster) -> None:
    with Cluster(tmp_path / "other", "--sshd") as other:
        namespaces = networks(other)
        assert len(namespaces) == 3
        assert not namespaces & networks(slurm)
        key = other.folder / "ssh" / "user"
        assert other.checked("n1", "ssh", "-i", key, "root@10.77.0.1", "sinfo -h -p debug -o %N") == "n1"
        # a daemon that no longer belongs to any job
        other.checked("head", "srun", "env", "-i", "setsid", "--fork", "sh", "-c", "exec sleep 1000 >/dev/null 2>&1")
        other.script("srun sleep 1000", "--nodes=2")
        assert len(processes(namespaces)) > 10
    assert not processes(namespaces)
    assert sorted(slurm.checked("head", "srun", "-N2", "hostname").split()) == ["n1", "n2"]


def test_a_cluster_ends_with_the_tests_that_started_it(tmp_path: Path) -> None:
    need_slurm()
    code = f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS.parent)!r})
from pathlib import Path
from slurm_support import Cluster
cluster = Cluster(Path({str(tmp_path / "tied")!r}))
print(*[cluster.checked(node, "readlink", "/proc/self/ns/net") for node in ("head", "n1", "n2")], flush=True)
time.sleep(1000)
"""
    tests = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert tests.stdout is not None
    namespaces = set(tests.stdout.readline().split())
    assert processes(namespaces)
    tests.kill()
    tests.wait()
    while processes(namespaces):
        time.sleep(0.1)


def test_where_no_cluster_works_the_tests_are_skipped_loudly_or_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("slurm_support.SCRIPTS", tmp_path)
    probe = tmp_path / "probe.sh"
    probe.write_text("#!/bin/sh\necho slurmctld is not installed; exit 1\n")
    probe.chmod(0o755)
    monkeypatch.delenv("NEMOTRON_NEEDS_SLURM", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NO TEST CLUSTER: slurmctld is not installed"):
        need_slurm()
    monkeypatch.setenv("NEMOTRON_NEEDS_SLURM", "1")
    with pytest.raises(pytest.fail.Exception, match="NO TEST CLUSTER"):
        need_slurm()
