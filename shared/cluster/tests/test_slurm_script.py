"""Scripts for sbatch: what they ask for, how processes begin, and that no value of a user gets out of its place.

shared/cluster/tests/golden holds the scripts without their fixed part. NEMOTRON_WRITE_GOLDEN=1 writes them anew.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from slurm_support import Cluster

from nemotron_cluster.job import CONFIG, Job
from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm import script
from nemotron_cluster.slurm.script import lead_of, render
from nemotron_shared.system.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
BODY = (Path(script.__file__).parent / "body.sh").read_text()
FOLDER = PurePosixPath("/lustre/me/jobs/20261123-101500-super3-sft-1f0c")
IMAGE = "nvcr.io/nvidia/nemo:25.11"
HOSTILE = """a'b"c $(touch pwned) `touch pwned` \\ %j #x ; * ü"""


def job(**changes: object) -> Job:
    values = {
        "name": "super3-sft",
        "command": ("-m", "stages.sft.train", "-c", CONFIG),
        "nodes": 2,
        "processes_per_node": 8,
        "gpus_per_node": 8,
        "cpus_per_node": 64,
        "whole_nodes": True,
        "environment": {"NEMOTRON_HOME": "/lustre/me/.nemotron", "PYTHONUNBUFFERED": "1"},
        "secrets": ("HF_TOKEN",),
        "after": ("41", "42"),
    }
    return Job(**values | changes)


def profile(**changes: object) -> Slurm:
    values = {
        "account": "llm",
        "partition": "batch",
        "mounts": ["/lustre:/lustre", "/data:/data:ro"],
        "setup_lines": ["module load cuda"],
    }
    return Slurm(executor="slurm", **values | changes)


def above_body(text: str) -> str:
    assert text.endswith("\n\n" + BODY)
    return text.removesuffix("\n\n" + BODY) + "\n"


@pytest.mark.parametrize("container", ["none", "pyxis", "apptainer"])
@pytest.mark.parametrize("start", ["torchrun", "srun", "single"])
def test_scripts_are_those_that_were_read(start: str, container: str) -> None:
    single = {"nodes": 1, "processes_per_node": 1, "gpus_per_node": 0, "cpus_per_node": 4, "whole_nodes": False}
    of_one = single if start == "single" else {}
    image = None if container == "none" else IMAGE
    text = above_body(render(job(start=start, container=image, **of_one), profile(container_runtime=container), FOLDER))
    path = GOLDEN / f"{start}-{container}.sh"
    if os.environ.get("NEMOTRON_WRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.stem)
def test_scripts_are_clean(path: Path, tmp_path: Path) -> None:
    whole = tmp_path / "job.sh"
    whole.write_text(path.read_text() + "\n" + BODY)
    subprocess.run(["bash", "-n", whole], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: scripts are only parsed")
    said = subprocess.run(["shellcheck", whole], capture_output=True, text=True, check=False).stdout
    assert not said


def test_values_of_users_stay_where_they_are_put(tmp_path: Path) -> None:
    folder = PurePosixPath(tmp_path / HOSTILE.replace("/", ""))
    hostile = job(
        command=("-m", "x", HOSTILE), environment={"A": HOSTILE}, secrets=(), workdir=HOSTILE, container=HOSTILE
    )
    text = above_body(render(hostile, profile(home=HOSTILE, container_runtime="apptainer"), folder))
    shown = 'printf "%s\\0" "$folder" "$workdir" "$A" "$NEMOTRON_HOME" "${command[2]}" "${inside[@]}"'
    said = subprocess.run(["bash", "-c", f"{text}\n{shown}"], cwd=tmp_path, capture_output=True, check=True).stdout
    first = said.decode().split("\0")[:5]
    assert first == [str(folder), HOSTILE, HOSTILE, HOSTILE, HOSTILE]
    assert HOSTILE in said.decode().split("\0")[5:]
    assert not list(tmp_path.iterdir())


def test_a_path_that_would_end_its_line_is_refused() -> None:
    for sign in ("\n", "\r", "\x1b", "\x85"):
        with pytest.raises(UserError, match="control character in an option of sbatch"):
            render(job(), profile(), PurePosixPath(f"/jobs/a{sign}touch it-ran;#"))


def test_slurm_reads_hostile_values_as_they_are(slurm: Cluster) -> None:
    folder = slurm.shared / """a'b"c #d %j"""
    folder.mkdir()
    (folder / "job.sh").write_text(render(Job("x y'#z", ("-c", "")), Slurm(executor="slurm"), PurePosixPath(folder)))
    number = slurm.checked("head", "sbatch", "--parsable", "--export=NONE", folder / "job.sh")
    slurm.wait_until(lambda: (folder / "exit_code").is_file())
    assert (folder / "exit_code").read_text() == "0\n"
    facts = slurm.checked("head", "scontrol", "show", "job", number)
    assert "JobName=x y'#z\n" in facts
    assert f"WorkDir={folder}\n" in facts
    assert "the job ended with exit code 0" in (folder / "log.txt").read_text()


def options(**changes: object) -> list[str]:
    """The directives for a profile."""
    text = render(job(), profile(**changes), FOLDER)
    return [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH")]


def test_directives_of_a_profile() -> None:
    assert "--gres=gpu:8" in options(gpus_option="gres")
    assert not [option for option in options(gpus_option="none") if "gpu" in option or option.startswith("--none")]
    assert "--no-requeue" in options(requeue=False)
    assert "--nodelist=n[1-4]" in options(extra_directives=["--nodelist=n[1-4]"])
    assert "--output=/x/100%%/log.txt" in render(job(), profile(), PurePosixPath("/x/100%"))
    text = render(job(), profile(partition="debug", time="30"), FOLDER)
    assert "#SBATCH --partition=debug\n" in text
    assert "#SBATCH --time=30\n" in text


SHARED = {"whole_nodes": False, "gpus_per_node": 2, "cpus_per_node": 16, "processes_per_node": 2}
PREPARING = {"gpus_per_node": 0, "cpus_per_node": None, "start": "single"}


@pytest.mark.parametrize(
    ("of_job", "of_profile", "exclusive", "cpus", "mem"),
    [
        ({}, {}, True, None, "0"),  # all GPUs of its nodes
        ({}, {"exclusive": False}, False, 64, None),
        ({}, {"mem": "100G"}, True, None, "100G"),
        ({}, {"cpus_per_task": 32}, True, 32, "0"),
        ({}, {"extra_directives": ["--mem-per-cpu=4G"]}, True, None, None),
        ({}, {"extra_directives": ["--exclusive=user", "-c 8"]}, False, None, None),
        (SHARED, {}, False, 16, None),
        (SHARED | {"start": "srun"}, {}, False, 8, None),
        (SHARED, {"exclusive": True}, True, None, "0"),
        (PREPARING, {}, True, None, "0"),  # as many workers as there are CPUs
        (PREPARING, {"cpus_per_task": 32}, False, 32, None),
        (PREPARING | {"whole_nodes": False, "cpus_per_node": 6}, {}, False, 6, None),
    ],
)
def test_whole_nodes_or_what_the_step_uses(
    of_job: dict[str, object], of_profile: dict[str, object], exclusive: bool, cpus: int | None, mem: str | None
) -> None:
    text = render(job(**of_job), profile(**of_profile), FOLDER)
    said = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if "#SBATCH" in line)
    asked = ("exclusive" in said and said["exclusive"] == "", said.get("cpus-per-task"), said.get("mem"))
    assert asked == (exclusive, cpus and str(cpus), mem)
    steps = re.findall(r"    (--cpus-per-task=\d+|--cpu-bind=none)\n", text)
    assert steps == ([f"--cpus-per-task={cpus}"] if cpus else ["--cpu-bind=none"] if exclusive else [])


def test_cpus_are_those_of_a_task_or_of_a_process_where_processes_are_counted_as_tasks() -> None:
    assert "--cpus-per-task=64" in options(cpus_per_task=64)
    assert "--cpus-per-task=64" in options(cpus_per_task=8, ntasks_per_node=8)
    assert "    --cpus-per-task=64\n" in render(job(), profile(cpus_per_task=64), FOLDER)


def test_setup_lines_that_are_no_shell_are_refused() -> None:
    with pytest.raises(UserError, match="setup_lines: bash cannot read them: line 2: unexpected EOF"):
        render(job(), profile(setup_lines=["module load cuda", "echo 'unfinished"]), FOLDER)
    render(job(), profile(setup_lines=["cat <<END", "text", "END"]), FOLDER)


def test_a_short_job_does_not_spend_its_time_with_saving() -> None:
    assert lead_of(300, "4:00:00") == 300
    assert lead_of(300, "10") == 150
    assert lead_of(300, "0:20") == 10
    assert lead_of(300, "0") == lead_of(300, "UNLIMITED") == 300  # no limit


def test_a_registry_is_written_as_enroot_wants_it() -> None:
    def image(name: str) -> str:
        found = re.search(r"--container-image=([^\s']+)", render(job(container=name), profile(), FOLDER))
        assert found
        return found[1]

    assert image("nvcr.io/nvidia/nemo:1") == "nvcr.io#nvidia/nemo:1"
    assert image("localhost:5000/x") == "localhost:5000#x"
    assert image("nvcr.io#nvidia/nemo:1") == "nvcr.io#nvidia/nemo:1"
    assert image("nvidia/nemo:1") == "nvidia/nemo:1"
    assert image("/images/nemo.sqsh") == "/images/nemo.sqsh"
    assert image("./images/nemo.sqsh") == "./images/nemo.sqsh"
