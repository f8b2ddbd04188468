"""The life of a job on a real Slurm: finished, failed, out of time, preempted, cancelled, its node lost.

The step is a small program that counts, saves on SIGTERM and ends with 130, as a stage does.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from jobs import write_programs
from lanes import slow
from slurm_support import Cluster

from nemotron_cluster.job import Job
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.secrets import write_secrets
from nemotron_cluster.slurm import script

SECRET = "planted 'secret"
STEP = (
    f"SECRET = {SECRET!r}"
    + """
import os, signal, sys, time
from pathlib import Path

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
last, fails_at, *force = sys.argv[1:]
here, rank = Path(__file__).parent.parent, os.environ.get("RANK", "0")
saved = here / f"saved-{rank}"
step = int(saved.read_text()) if saved.exists() and not force else 0
facts = [rank, os.environ.get("WORLD_SIZE"), os.environ.get("MASTER_PORT"), step, *force]
with (here / "starts").open("a") as file:
    file.write(f"{facts} {os.environ['TOKEN'] == SECRET}\\n")
while step < int(last):
    time.sleep(0.1)
    step += 1
    if rank == "0":
        print(f"[step] step {step}/{last}  loss 1.0", flush=True)
    if step == int(fails_at):
        sys.exit(7)
    if stop:
        saved.write_text(str(step))
        sys.exit(130)
"""
)


@dataclass
class Submitted:
    """A job on the test cluster, by its folder and its id."""

    slurm: Cluster
    folder: Path
    id: str

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def has_said(self, words: str, times: int = 1) -> None:
        self.slurm.wait_until(lambda: self.log().count(words) >= times, 2)

    def exit_code(self) -> int:
        """As it is once the job has ended."""
        self.slurm.wait_until(lambda: (self.folder / "exit_code").is_file(), 2)
        self.slurm.wait_for(self.id, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        return int((self.folder / "exit_code").read_text())

    def starts(self) -> list[str]:
        return (self.folder / "starts").read_text().splitlines()

    def attempts(self) -> list[str]:
        return [line.split()[0] for line in (self.folder / "attempts").read_text().splitlines()]

    def has_secrets(self) -> bool:
        return (self.folder / "secrets").exists()

    def warn(self) -> None:
        """What Slurm does before the time limit and before a preemption."""
        self.slurm.checked("head", "scancel", "--signal=USR1", "--batch", self.id)


@pytest.fixture
def submit(slurm: Cluster, tmp_path: Path):
    """Submit a job whose step counts to `last` and fails at step `fails_at`."""
    made = []

    def go(last: int = 3, fails_at: int = -1, before: str = "", drop: str = "", **changes: object) -> Submitted:
        folder = slurm.shared / f"{tmp_path.name}-{len(made)}"
        (folder / "code").mkdir(parents=True)
        (folder / "code" / "count.py").write_text(STEP)
        (folder / "log.txt").touch()
        if before:
            (folder / "attempts").write_text(before)
        write_secrets(folder, ["TOKEN"], {"TOKEN": SECRET})
        values = {name: changes.pop(name) for name in list(changes) if name in Job.__dataclass_fields__}
        command = ("-m", "count", str(last), str(fails_at))
        job = Job("count", command, python=sys.executable, secrets=("TOKEN",), **values)
        profile = Slurm(executor="slurm", **{"time": "10", **changes})
        text = script.render(job, profile, PurePosixPath(folder))
        (folder / "job.sh").write_text("\n".join(line for line in text.splitlines() if not drop or drop not in line))
        number = slurm.checked("head", "sbatch", "--parsable", "--export=NONE", folder / "job.sh")
        made.append(Submitted(slurm, folder, number))
        return made[-1]

    yield go
    slurm.clear()


def test_a_job_that_finishes(submit, slurm: Cluster) -> None:
    job = submit(start="srun", nodes=2, processes_per_node=2, environment={"PLAIN": "plain 'value"})
    assert job.exit_code() == 0
    assert slurm.state(job.id) == "COMPLETED"
    port = 15000 + int(job.id) % 15000
    assert sorted(job.starts()) == [f"['{rank}', '4', '{port}', 0] True" for rank in range(4)]
    assert "started on n1,n2, attempt 1\n" in job.log()
    assert "0: [step] step 3/3" in job.log()
    assert not job.has_secrets()
    kept = [path.read_text() for path in job.folder.rglob("*") if path.is_file() and "code" not in path.parts]
    assert not [text for text in kept if "planted" in text]
    assert "planted" not in slurm.checked("head", "scontrol", "show", "job", job.id)


def test_a_step_begins_inside_of_its_container(submit, slurm: Cluster) -> None:
    """No apptainer is at hand here: a program of that name keeps what it is told, and starts what it would start."""
    programs = slurm.shared / "programs"
    write_programs(programs, {"apptainer": f'#!/bin/sh\necho "$*" >>{programs}/told\nshift 7\nexec "$@"\n'})
    lines = [f"export PATH={programs}:$PATH"]
    job = submit(start="srun", container="/images/nemo.sif", container_runtime="apptainer", setup_lines=lines)
    assert job.exit_code() == 0
    assert "', 0] True" in job.starts()[0]
    told = (programs / "told").read_text()
    assert told.startswith(f"exec --no-home --bind {job.folder}:{job.folder} --pwd {job.folder} /images/nemo.sif sh -c")


def test_what_fails_before_its_first_step_is_not_tried_again(submit, slurm: Cluster) -> None:
    job = submit(0, setup_lines=["false"])
    assert job.exit_code() == 1
    assert not job.has_secrets()
    assert not (job.folder / "starts").exists()
    job = submit(fails_at=1, setup_lines=["exit 0"])
    assert job.exit_code() == 1, "what never began has not succeeded"
    assert slurm.state(job.id) == "FAILED"


def test_what_fails_twice_at_one_step_keeps_its_code(submit, slurm: Cluster) -> None:
    job = submit(last=9, fails_at=3)
    assert job.exit_code() == 7
    assert slurm.state(job.id) == "FAILED"
    assert job.attempts() == ["begun", "failed", "begun", "failed"]
    assert "not queued again: its last two attempts broke off at step 3" in job.log()
    assert not job.has_secrets()


@pytest.mark.slow
def test_a_warned_job_saves_and_continues_without_force(submit, slurm: Cluster) -> None:
    job = submit(last=60, nodes=2, start="srun", force=True)
    job.has_said("step 5/60")
    job.warn()
    job.has_said("queued again")
    assert not (job.folder / "exit_code").exists()
    assert job.has_secrets()
    assert job.exit_code() == 0
    first, second = job.starts()[:2], job.starts()[2:]
    assert all("0, '--force'] True" in line for line in first)
    assert all("--force" not in line and ", 0]" not in line for line in second)
    assert len(second) == 2
    assert job.attempts() == ["begun", "stopped", "begun"]
    assert not job.has_secrets()


def test_a_warned_job_ends_where_the_profile_does_not_requeue(submit, slurm: Cluster) -> None:
    job = submit(last=600, requeue=False)
    job.has_said("step 5/600")
    job.warn()
    assert job.exit_code() == 130
    assert (job.folder / "saved-0").exists()
    assert not job.has_secrets()


def test_a_cancelled_job_saves_and_is_over(submit, slurm: Cluster) -> None:
    job = submit(last=600, nodes=2, start="srun")
    job.has_said("step 5/600")
    slurm.checked("head", "scancel", job.id)
    assert job.exit_code() == 130
    assert slurm.state(job.id) == "CANCELLED"
    slurm.wait_until(lambda: (job.folder / "saved-0").exists() and (job.folder / "saved-1").exists())
    assert not job.has_secrets()
    assert job.log().count("the job ended") == 1


def test_a_step_that_somebody_stops_is_over(submit) -> None:
    job = submit(last=600)
    job.has_said("step 5/600")
    job.slurm.checked("head", "scancel", "--signal=TERM", job.id)
    assert job.exit_code() == 130


@pytest.mark.slow
def test_a_job_that_somebody_queues_again_continues(submit, slurm: Cluster) -> None:
    job = submit(last=50)
    job.has_said("step 5/50")
    slurm.checked("head", "scontrol", "requeue", job.id)
    assert job.exit_code() == 0
    assert job.attempts() == ["begun", "stopped", "begun"]
    assert ", 0] True" not in job.starts()[1]


def test_five_stops_without_a_step_end_a_job(submit) -> None:
    job = submit(last=600, before="begun 1\nstopped 0\n" * 4, setup_lines=["sleep 2"])
    job.has_said("started on")
    job.warn()
    assert job.exit_code() == 130
    assert "five attempts in a row came no further than step 0" in job.log()


def test_two_losses_at_one_step_end_a_job(submit) -> None:
    job = submit(before="begun 1\nlost 0\nbegun 2\n")
    assert job.exit_code() == 1
    assert "not tried again: its last two attempts broke off at step 0" in job.log()
    assert not (job.folder / "starts").exists()


def test_jobs_on_one_node_have_ports_of_their_own(submit, slurm: Cluster) -> None:
    jobs = [submit(last=30, start="srun", extra_directives=["--nodelist=n1"]) for _ in range(2)]
    for job in jobs:
        job.has_said("step 1/30")
    assert all(job.exit_code() == 0 for job in jobs)
    assert len({job.starts()[0] for job in jobs}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("drop", ["", *slow("#SBATCH --signal=")], ids=["warned by the site", "not warned"])
def test_a_preempted_job_saves_and_continues(submit, slurm: Cluster, drop: str) -> None:
    job = submit(last=80, nodes=2, start="srun", exclusive=True, drop=drop)
    job.has_said("step 5/80")
    urgent = slurm.script("sleep 1", "--partition=urgent", "--nodes=2", "--exclusive")
    job.has_said("queued again")
    slurm.wait_for(urgent, "COMPLETED")
    assert job.exit_code() == 0
    assert job.attempts() == ["begun", "stopped", "begun"]
    assert ", 0] True" not in job.starts()[2]


@pytest.mark.slow
def test_the_time_limit_is_seen_ahead(submit) -> None:
    job = submit(last=700, time="1", signal_lead=10)
    assert job.exit_code() == 0
    assert job.attempts().count("stopped") >= 1
    assert "lost" not in job.attempts()


@pytest.mark.slow
def test_a_job_outlives_the_loss_of_a_node(submit, slurm: Cluster) -> None:
    job = submit(last=400, nodes=2, start="srun")
    job.has_said("step 5/400")
    slurm.lose("n2")
    slurm.wait_for(job.id, "PENDING")
    slurm.bring_back("n2")
    assert job.exit_code() == 0
    assert job.attempts()[-1] == "begun"
    assert not job.has_secrets()


@pytest.mark.slow
def test_torchrun_on_two_nodes_saves_and_continues_beside_another(submit) -> None:
    jobs = [submit(last=150, start="torchrun", nodes=2, processes_per_node=2) for _ in range(2)]
    for job in jobs:
        job.has_said("step 5/150")
    jobs[0].warn()
    assert [job.exit_code() for job in jobs] == [0, 0]
    assert jobs[0].attempts() == ["begun", "stopped", "begun"]
    assert len(jobs[0].starts()) == 8
    assert len(jobs[1].starts()) == 4


@pytest.mark.parametrize(
    ("attempts", "reason"),
    [
        ("failed 0", "it failed before its first training step"),
        ("failed 500", ""),
        ("failed 500, lost 500", "its last two attempts broke off at step 500"),
        ("lost 500, failed 480", "its last two attempts broke off at step 480"),
        ("failed 500, failed 510", ""),
        ("failed 500, stopped 500, failed 500", ""),
        ("lost 0", ""),
        ("stopped 0, stopped 0, stopped 0, stopped 0", ""),
        ("stopped 7, stopped 7, stopped 7, stopped 7, stopped 7", ""),
        ("stopped 7, stopped 7, stopped 7, stopped 7, stopped 7, stopped 7", "five attempts in a row"),
    ],
)
def test_when_another_attempt_is_hopeless(tmp_path: Path, attempts: str, reason: str) -> None:
    (tmp_path / "attempts").write_text("".join(f"begun 1\n{line}\n" for line in attempts.split(", ")))
    body = Path(script.__file__).with_name("body.sh").read_text()
    function = body[body.index("hopeless() {") : body.index("# The job has ended")]
    said = subprocess.run(
        ["bash", "-c", f"folder={tmp_path}; {function}\nhopeless"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith(reason)
    assert bool(said.stdout) == bool(reason)
    assert not said.stderr
