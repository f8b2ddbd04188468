"""How a job is, asked of a real Slurm: while it waits, runs, has ended, and while nobody answers."""

from subprocess import CompletedProcess, TimeoutExpired

import pytest
from slurm_support import Cluster

from nemotron_cluster.slurm.scheduler import Facts, explain_reason, find_job
from nemotron_cluster.transport import NoAnswer


def facts(cluster: Cluster, job: str, without: tuple[str, ...] = (), patience: float = 300) -> Facts:
    """What is known on the head, where some programs may be missing."""

    def run(command: list[str]) -> CompletedProcess[str]:
        if command[0] in without:
            return CompletedProcess(command, 127, "", f"{command[0]}: command not found")
        try:
            return cluster.run("head", *command, timeout=patience)
        except TimeoutExpired as error:
            raise NoAnswer(f"{command[0]} did not answer") from error

    found = find_job(run, job)
    assert found is not None
    return found


def test_a_job_from_waiting_to_its_end(slurm: Cluster) -> None:
    job = slurm.script("sleep 1; exit 3", "--hold")
    waiting = facts(slurm, job)
    assert (waiting.condition, waiting.source, waiting.exit_code, waiting.nodes) == ("waiting", "squeue", None, "")
    slurm.checked("head", "scontrol", "release", job)
    slurm.wait_until(lambda: facts(slurm, job).condition == "running")
    assert facts(slurm, job).nodes == "n1"
    slurm.wait_until(lambda: facts(slurm, job).over)
    ended = facts(slurm, job)
    assert (ended.state, ended.exit_code, ended.signal, ended.restarts) == ("FAILED", 3, None, 0)


def test_squeue_and_scontrol_say_the_same(slurm: Cluster) -> None:
    killed = slurm.script("kill -9 $$")
    held = slurm.script("true", "--hold")
    slurm.wait_until(lambda: facts(slurm, killed).over)
    for job in (killed, held):
        by_controller = vars(facts(slurm, job, without=("squeue",)))
        assert by_controller.pop("source") == "scontrol"
        by_queue = vars(facts(slurm, job))
        assert by_queue.pop("source") == "squeue"
        assert {**by_queue, "start": None} == {**by_controller, "start": None}
    assert facts(slurm, killed).signal == 9
    slurm.clear()


def test_a_job_that_was_queued_again_says_so(slurm: Cluster) -> None:
    job = slurm.script("sleep 1000")
    slurm.wait_for(job, "RUNNING")
    slurm.checked("head", "scontrol", "requeue", job)
    slurm.wait_until(lambda: facts(slurm, job).reason == "BeginTime")
    again = facts(slurm, job)
    assert (again.condition, again.restarts, again.exit_code) == ("waiting", 1, None)
    assert "about two minutes" in explain_reason(again.reason, again.restarts)
    slurm.clear()


def test_a_controller_that_does_not_answer_ends_no_job(slurm: Cluster) -> None:
    job = slurm.script("sleep 1000")
    slurm.wait_for(job, "RUNNING")
    controller = slurm.checked("head", "pgrep", "-x", "slurmctld")
    slurm.checked("head", "kill", "-STOP", controller)
    try:
        with pytest.raises(NoAnswer, match=f"the state of job {job} is not known: squeue did not answer"):
            facts(slurm, job, patience=2)
    finally:
        slurm.checked("head", "kill", "-CONT", controller)
    assert facts(slurm, job).condition == "running"
    slurm.clear()


def test_a_job_that_never_was(slurm: Cluster) -> None:
    assert find_job(lambda command: slurm.run("head", *command), "999999") is None
