"""The part of a job's script that keeps Ray, on programs that only pretend to be Slurm's: who is started and told."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from jobs import wait_for, write_programs

from nemotron_cluster.job import Job
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm.script import render

SRUN = """#!/bin/bash
# Keeps its words, writes where it was told to, and behaves as $HEAD, $WORKER or $DRIVER says.
if [[ $* == *.canaries ]]; then # on every node that $LOST does not name
    while [[ $1 != sh ]]; do shift; done
    for node in n1 n2; do [[ $node == "$LOST" ]] || SLURMD_NODENAME=$node "$@"; done
    exit
fi
echo "$*" >>"$RECORD"
for word; do
    [[ $word != --output=* ]] || exec >>"${word#--output=}"
    [[ ! $role ]] || break
    [[ $before != */ray_node.py ]] || role=$word
    before=$word
done
trap 'echo "$role ended" >>"$RECORD"; exit 0' USR2
eval "$(declare -n does=${role^^}; echo "${does:-while :; do sleep 0.1; done}")"
"""
SCONTROL = """#!/bin/bash
[[ $* != "show hostnames"* ]] || printf '%s\\n' n1 n2
[[ $1 != requeue ]] || echo requeued >>"$RECORD"
"""


DRIVER = Job("ray", ("-m", "steps", "a b"), "/py", start="ray", nodes=2, gpus_per_node=4)
PLAIN = Slurm(executor="slurm")
NOTHING: Mapping[Path, str] = {}


class Pretended:
    """A job whose script runs here, with programs of Slurm's names before it."""

    def __init__(
        self, folder: Path, job: Job = DRIVER, profile: Slurm = PLAIN, there: Mapping[Path, str] = NOTHING, **does: str
    ) -> None:
        self.folder = folder / "job"
        self.folder.mkdir()
        for path, text in there.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        write_programs(folder / "bin", {"srun": SRUN, "scontrol": SCONTROL, "scancel": "#!/bin/bash\n"})
        (self.folder / "job.sh").write_text(render(job, profile, PurePosixPath(self.folder)))
        own = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "RECORD": str(folder / "record")}
        own |= {"SLURM_CPUS_ON_NODE": "16", "SLURM_EXPORT_ENV": "NONE"}
        path = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        with (self.folder / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                ["bash", self.folder / "job.sh"], env=os.environ | own | path | does, stdout=log, stderr=log
            )

    def ended(self, sentinel: str = "ENDED") -> tuple[int, str]:
        """Its code, which its file tells too, and what it said."""
        code = self.process.wait(timeout=300)
        assert (self.folder / "exit_code").read_text() == f"{code}\n"
        assert not (self.folder / "secrets").exists()
        assert (self.folder / "logs" / sentinel).exists()
        return code, self.said()

    def said(self) -> str:
        return (self.folder / "log.txt").read_text()

    def record(self) -> list[str]:
        return (self.folder.parent / "record").read_text().splitlines()


def test_head_worker_and_driver_are_started_and_the_driver_s_code_is_the_job_s(tmp_path: Path) -> None:
    show = 'stat -c "%a %s" "$RAY_AUTH_TOKEN_PATH"; echo "$RAY_AUTH_MODE ${RAY_ADDRESS-none}"; sleep 1; exit 5'
    job = Pretended(tmp_path, DRIVER=show, RAY_ADDRESS="elsewhere:1")
    code, said = job.ended()
    assert code == 5
    assert "600 64\ntoken none\n" in said
    assert (job.folder / "logs/driver.log").read_text() == "600 64\ntoken none\n"
    logs = job.folder / "logs"
    task = f"/py {job.folder}/code/nemotron_cluster/slurm/ray_node.py"
    one = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --overlap --mpi=none --cpu-bind=none"
    assert sorted(job.record()) == sorted([
        f"--export=ALL --relative=0 {one} --output={logs}/head.log --open-mode=append --kill-on-bad-exit=1 {task}"
        f" head {logs} n2 6407",
        f"--export=ALL --relative=1 {one} --output={logs}/worker-%t.log --open-mode=append --kill-on-bad-exit=1 {task}"
        f" worker {logs}",
        f"--export=ALL --relative=0 {one} --kill-on-bad-exit=1 {task} driver {logs} 2 8 /py -m steps a b",
        "head ended",
        "worker ended",
    ])  # fmt: skip


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_head_or_worker_that_ends_ends_the_job_with_its_words(tmp_path: Path, role: str) -> None:
    lost = {role.upper(): 'echo "error: n2: Ray is not installed for /py: install it"; echo more; exit 1'}
    job = Pretended(tmp_path, DRIVER="trap 'exit 143' USR1; while :; do sleep 0.1; done", **lost)
    code, said = job.ended()
    assert code == 1
    assert f"Ray: a {role} has ended: error: n2: Ray is not installed for /py: install it\n" in said
    assert f"{'worker' if role == 'head' else 'head'} ended" in job.record()


def test_a_node_that_does_not_see_the_shared_folder_is_named_before_ray_starts(tmp_path: Path) -> None:
    job = Pretended(tmp_path, LOST="n2")
    code, said = job.ended()
    assert code == 1
    canaries = job.folder / "logs/.canaries"
    assert f"error: n1 does not find in the shared folder {canaries} what these nodes should have written: n2\n" in said
    assert 'extra_directives = ["--exclude=n2"]' in said
    assert not (tmp_path / "record").exists(), "nothing of Ray was started"


def test_only_the_driver_is_told_to_save_and_the_job_is_queued_again(tmp_path: Path) -> None:
    saving = "trap 'cat $RECORD; echo saved; exit 130' USR1; echo driving; while :; do sleep 0.1; done"
    job = Pretended(tmp_path, DRIVER=saving)
    wait_for(lambda: "driving" in job.said())
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(timeout=300) == 0
    before = job.said().partition("saved")[0]
    assert "asking the step to save" in before and "ended" not in before.partition("--export")[2]
    assert job.record()[-1] == "requeued"
    assert {"head ended", "worker ended"} < set(job.record())
    assert not (job.folder / "exit_code").exists()
    assert not (job.folder / "secrets/ray").exists()


RAY_SUB = """#!/bin/bash
# What NeMo-RL's ray.sub does with its variables and its folder of logs, at nano-v3 and at v0.7.0: which, VERSION says.
set -eu
again=${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
[[ $VERSION != nano-v3 ]] || again= # one folder for all attempts
LOG_DIR=$BASE_LOG_DIR/$SLURM_JOB_ID$again-logs
echo "$CONTAINER $MOUNTS $GPUS_PER_NODE $CPUS_PER_WORKER" >>"$RECORD"
echo "$SLURM_JOB_ACCOUNT $SLURM_EXPORT_ENV $SLURM_SUBMIT_DIR" >>"$RECORD"
mkdir -p "$LOG_DIR"
sidecar() { until [[ -e $LOG_DIR/ENDED ]]; do sleep 0.1; done; } # on each node; ends what runs there
unset PYTHONPATH HF_HOME NEMOTRON_HOME # as an image may
printf %s "$COMMAND" >"$LOG_DIR/driver_command.sh"
if [[ -e $LOG_DIR/ENDED ]]; then # of an earlier attempt: the sidecars end the cluster before its driver
    echo "Detected ENDED file, terminating..."
    exit 8
fi
bash "$LOG_DIR/driver_command.sh" >"$LOG_DIR/ray-driver.log" 2>&1 || true
sidecar # as where Slurm does not find them
exit 9
"""
PYTHON = """#!/bin/bash
echo "$*" >>"$RECORD"
[[ $2 != ray.scripts.scripts ]] || exit 0
echo "$PWD $PYTHONPATH $HF_HOME $NEMOTRON_HOME"
eval "$STEP"
"""


def with_ray_sub(folder: Path, **keys: object) -> tuple[Job, Slurm]:
    write_programs(folder, {"ray.sub": RAY_SUB, "python": PYTHON})
    own = {"NEMOTRON_HOME": f"{folder}/home"}
    job = replace(DRIVER, python=f"{folder}/python", container="nvcr.io/nvidia/nemo-rl:v0.4.0", environment=own)
    return job, Slurm.model_validate({"executor": "slurm", "ray_sub": f"{folder}/ray.sub", **keys})


@pytest.mark.parametrize(("version", "logs"), [("nano-v3", "7-logs"), ("v0.7.0", "7-2-logs")])
def test_ray_sub_finds_what_it_reads_and_the_step_is_its_driver(tmp_path: Path, version: str, logs: str) -> None:
    job, profile = with_ray_sub(tmp_path, mounts=["/data:/data"])
    before = tmp_path / "job/logs/7-logs"  # of the first attempt
    ran = Pretended(
        tmp_path, job, profile, {before / "ENDED": "", before / "ray-driver.log": "before\n"}, VERSION=version,
        STEP="sleep 1; exit 6", SLURM_JOB_ACCOUNT="llm", SLURM_RESTART_COUNT="2",
    )  # fmt: skip
    code, said = ran.ended(f"attempt-3/{logs}/ENDED")
    here = ran.folder
    assert code == 6
    assert ran.record() == [
        f"nvcr.io#nvidia/nemo-rl:v0.4.0 {here}:{here},{tmp_path}/home:{tmp_path}/home,/data:/data 4 16",
        f"llm ALL {here}",
        "-m steps a b",
        "-m ray.scripts.scripts stop --force",
    ]
    shown = f"{here} {here}/code {tmp_path}/home/huggingface {tmp_path}/home\n"
    assert said.count(shown) == 1 and "before\n" not in said
    assert (here / f"logs/attempt-3/{logs}/ray-driver.log").read_text() == shown
    assert (before / "ray-driver.log").read_text() == "before\n"


def test_nodes_are_not_shared_and_jobs_of_a_name_wait_as_in_ray_sub_s_own_header(tmp_path: Path) -> None:
    job, profile = with_ray_sub(tmp_path)
    script = render(replace(job, after=("3", "4")), profile, PurePosixPath("/lustre/me/jobs/1"))
    assert "#SBATCH --exclusive\n" in script and "#SBATCH --dependency=afterok:3:4,singleton\n" in script
    assert "#SBATCH --dependency=singleton\n" in render(job, profile, PurePosixPath("/lustre/me/jobs/1"))
    assert "singleton" not in render(DRIVER, PLAIN, PurePosixPath("/lustre/me/jobs/1"))


def test_the_driver_of_ray_sub_is_told_to_save(tmp_path: Path) -> None:
    job, profile = with_ray_sub(tmp_path)
    saving = "trap 'echo saved; exit 130' TERM; while :; do sleep 0.1; done"
    ran = Pretended(tmp_path, job, profile, STEP=saving, VERSION="v0.7.0", SLURM_JOB_ACCOUNT="llm")
    wait_for(lambda: "huggingface" in ran.said())
    ran.process.send_signal(signal.SIGUSR1)
    assert ran.process.wait(timeout=300) == 0
    assert ran.said().count("saved\n") == 1
    assert ran.record()[-2:] == ["-m ray.scripts.scripts stop --force", "requeued"]


@pytest.mark.parametrize(("keys", "account", "wrong"), [
    ({"ray_sub": "/nowhere/ray.sub"}, "llm", "ray_sub: there is no /nowhere/ray.sub on n1: name the one of NeMo-RL's"),
    ({}, "", "this job has none: add account to the profile"),
])  # fmt: skip
def test_what_ray_sub_needs_is_said(tmp_path: Path, keys: dict[str, str], account: str, wrong: str) -> None:
    ran = Pretended(tmp_path, *with_ray_sub(tmp_path, **keys), SLURM_JOB_ACCOUNT=account)
    assert ran.process.wait(timeout=300) == 1
    assert wrong in ran.said()


def test_ray_sub_is_left_alone_without_a_container() -> None:
    profile = Slurm.model_validate({"executor": "slurm", "ray_sub": "/lustre/ray.sub"})
    assert "/lustre/ray.sub" not in render(DRIVER, profile, PurePosixPath("/lustre/me/jobs/1"))


@pytest.mark.parametrize("ray_sub", [None, "/lustre/RL/ray.sub"])
@pytest.mark.parametrize("container", ["none", "pyxis", "apptainer"])
def test_the_whole_script_is_clean(tmp_path: Path, container: str, ray_sub: str | None) -> None:
    job = replace(DRIVER, container=None if container == "none" else "nvcr.io/nvidia/nemo-rl:v0.4.0")
    path = tmp_path / "job.sh"
    profile = {"executor": "slurm", "container_runtime": container, "cpus_per_task": 64, "ray_sub": ray_sub}
    path.write_text(render(job, Slurm.model_validate(profile), PurePosixPath("/lustre/me/jobs/1")))
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: the script is only parsed")
    assert not subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False).stdout


TELLS = """#!/bin/bash
[[ $* != "show hostnames"* ]] || echo n1
[[ $2 != job ]] || { echo asked >>"$RECORD"; (($(wc -l <"$RECORD") > 1)) && echo "$LATER" || echo JobState=RUNNING; }
"""
"""It tells of a change of the job's state when it is asked once more."""


@pytest.mark.parametrize(
    ("later", "before", "how", "code", "written"),
    [
        ("JobState=COMPLETING Restarts=1", "0", "stopped 0", 130, None),
        ("JobState=RUNNING Restarts=0", "0", "begun 1", 130, "130\n"),
        ("JobState=RUNNING Restarts=1", "1", "stopped 0", 0, None),
    ],
    ids=["lost node", "by hand", "echo of the attempt before"],
)
def test_a_step_that_slurm_ends_before_it_says_so_is_not_ended_by_hand(
    tmp_path: Path, later: str, before: str, how: str, code: int, written: str | None
) -> None:
    write_programs(tmp_path, {"srun": "#!/bin/bash\nexit 130\n", "scontrol": TELLS})
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "log.txt").touch()
    script = folder / "job.sh"
    script.write_text(render(Job("x", ("-m", "step"), "/py"), PLAIN, PurePosixPath(folder)))
    own = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment = os.environ | own | {"RECORD": str(tmp_path / "record"), "LATER": later, "SLURM_RESTART_COUNT": before}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    told = folder / "exit_code"
    assert (told.read_text() if told.exists() else None) == written
    assert (folder / "attempts").read_text().splitlines()[-1] == how
