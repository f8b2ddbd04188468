"""Words of a command reach its program unchanged by every way in which jobs are sent: the scripts are really run.

A program that writes down what it is given stands for Python, and a few lines of shell for srun, apptainer and ssh.
"""

import dataclasses
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from jobs import folder_of, job_of, profile_of, write_programs
from renderings import IMAGE, PROFILES, REQUEST
from test_ray_script import DRIVER, PLAIN, Pretended, with_ray_sub

from nemotron_cluster.backends import backend_of
from nemotron_cluster.backends.skypilot import TASK
from nemotron_cluster.job import FOLDER, Job
from nemotron_cluster.secrets import write_secrets
from nemotron_cluster.slurm.script import render
from nemotron_cluster.transport import Ssh

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
WORDS = st.lists(TEXTS, min_size=1, max_size=4)
NASTY = [
    "", " ", "a b", "it's", '"', "$(touch it-ran)", "`touch it-ran`", "; touch it-ran #", "two\nlines\n", "\r", "\t",
    "-x", "--", "--help", "*", "~", "~root", "{a,b}", "a=b", "!!", "\\", "\\n", "$HOME", "${x}", "%s",
    "é\u202e世\U0001f600",
    "\x1b[0m\x7f", "$'\\x41'", "<(ls)", ">it-ran", "&", "&&", "|", "!", "[a]", "(", "\ufeff", "\u2028",
]  # fmt: skip
FEW = settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate],
               suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
"""Each example starts a few processes."""

RECORDER = """#!/bin/bash
# The words, and PLACE and TOKEN, each with a NUL behind it.
printf '%s\\0' "$PLACE" "$TOKEN" "$PWD" "$@" >"$RECORD"
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
APPTAINER = """#!/bin/bash
shift
while [[ $1 == --* ]]; do
    case $1 in --bind | --pwd) shift ;; esac
    shift
done
shift # the image
exec "$@"
"""
SCONTROL = """#!/bin/bash
[[ $* != "show hostnames"* ]] || echo n1
"""
SSH = """#!/bin/bash
# As sshd does: what stands behind the host, with spaces between, for the login shell of the user there.
while [[ $1 != -- ]]; do shift; done
shift
exec bash -c "$*"
"""
SKY = """#!/bin/bash
"""
STANDING_IN = {"srun": SRUN, "apptainer": APPTAINER, "scontrol": SCONTROL, "ssh": SSH, "sky": SKY}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name needs quotes, with the programs in it first on the path."""
    place = tmp_path / "a b's $(touch it-ran)"
    write_programs(place, {"py thon": RECORDER})
    write_programs(place / "bin", STANDING_IN)
    monkeypatch.setenv("PATH", str(place / "bin"), prepend=":")
    monkeypatch.setenv("NEMOTRON_ENGINES", str(place / "engines"))
    for name in ("NEMOTRON_HOME", "PLACE", "TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return place


def job_with(place: Path, words: list[str], **keys: Any) -> Job:
    assume(not any(word.startswith(f"{FOLDER}/") for word in words))  # which stands for the job's folder
    return job_of(command=("-m", "step", *words), python=str(place / "py thon"), **keys)


def ran(command: list[str], place: Path, variables: Mapping[str, str], cwd: Path) -> list[str]:
    """Run a script, and read what the program was given."""
    record = place / "record"
    record.unlink(missing_ok=True)
    environment = os.environ | {"RECORD": str(record)} | variables
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert not [*place.parent.rglob("it-ran")], "something of it was run"
    return record.read_bytes().decode().split("\0")[:-1]


def tail_of(found: list[str], words: list[str]) -> list[str]:
    """The step's words, behind what torchrun is told."""
    return found[len(found) - len(words) - 2 :]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize("container", ["none", "pyxis", "apptainer"])
@pytest.mark.parametrize("start", ["single", "torchrun", "srun"])
@FEW
@given(words=WORDS, value=TEXTS)
@example(words=NASTY, value="".join(NASTY))
def test_by_slurm(place: Path, start: str, container: str, words: list[str], value: str) -> None:
    folder = folder_of(place)
    image = {} if container == "none" else {"container": IMAGE}
    job = job_with(place, words, start=start, environment={"PLACE": value}, secrets=("TOKEN",), **image)
    write_secrets(folder, ["TOKEN"], {"TOKEN": value})
    profile = profile_of("slurm", **({} if container == "none" else {"container_runtime": container}))
    script = folder / "job.sh"
    script.write_text(render(job, profile, PurePosixPath(folder)), encoding="utf-8", newline="")
    found = ran(["bash", str(script)], place, SLURM, place)
    assert found[:3] == [value, value, str(folder)]
    assert tail_of(found, words) == ["-m", "step", *words]


@pytest.mark.parametrize("executor", PROFILES)
@FEW
@given(words=WORDS, value=TEXTS)
@example(words=NASTY, value="".join(NASTY))
def test_by_the_script_of_every_other_executor(place: Path, executor: str, words: list[str], value: str) -> None:
    """What a container or a cloud starts is `bash job.sh`; the request around it holds no word of the user's."""
    keys = {key: value for key, value in PROFILES[executor].items() if key != "setup_lines"}
    image = {} if executor == "local" else {"container": IMAGE}
    folder = folder_of(place)
    job = job_with(place, words, start="torchrun", environment={"PLACE": value}, **image)
    text = backend_of(profile_of(executor, **keys)).render(job, folder)
    script = folder / "job.sh"
    script.write_text(text[text.index("#!/usr/bin/env bash") :].partition(REQUEST)[0], encoding="utf-8", newline="")
    write_secrets(folder, ["TOKEN"], {"TOKEN": value})
    found = ran(["bash", str(script)], place, {}, place)
    assert found[:3] == [value, value, str(folder)]
    assert tail_of(found, words) == ["-m", "step", *words]


@FEW
@given(words=WORDS)
@example(words=NASTY)
def test_by_skypilot_s_task(place: Path, words: list[str]) -> None:
    """The file that `sky` is given, read as it reads it, and its `run` in a home folder like the one there."""
    folder = folder_of(place)
    backend_of(profile_of("skypilot", home="/d")).submit(job_with(place, words), folder)
    task = yaml.safe_load((folder / TASK).read_text(encoding="utf-8"))
    home = place / f"home of {folder.name}"
    home.mkdir()
    (home / "sky_workdir").symlink_to(task["workdir"])
    found = ran(["bash", "-c", task["run"]], place, {"HOME": str(home)}, home)
    assert found[3:] == ["-m", "step", *words]


@FEW
@given(words=WORDS)
@example(words=NASTY)
def test_by_ssh(place: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    record = place / "record"
    monkeypatch.setenv("RECORD", str(record))
    assert Ssh("login", "me", 22).run([str(place / "py thon"), *words]).returncode == 0
    assert record.read_bytes().decode().split("\0")[3:-1] == words


@FEW
@given(name=TEXTS.filter(lambda text: "/" not in text and text not in ("", ".", "..") and len(text.encode()) < 200))
@example(name="".join(NASTY).replace("/", ""))
def test_a_file_of_any_name_is_read_by_ssh(place: Path, name: str) -> None:
    file = place / name
    assume(not file.exists())
    file.write_bytes(b"0123456")
    assert Ssh("login").read(PurePosixPath(file), 3) == b"3456"
    file.unlink()


@pytest.mark.parametrize("ray_sub", [False, True])
def test_by_a_driver_of_ray(tmp_path: Path, ray_sub: bool) -> None:
    """Ours, and NeMo-RL's ray.sub, which is given the command as a line of shell."""
    note, record = 'printf \'%s\\0\' "$@" >"$WORDS"', tmp_path / "words"
    job, profile = with_ray_sub(tmp_path) if ray_sub else (DRIVER, PLAIN)
    job = dataclasses.replace(job, command=("-m", "step", *NASTY))
    told = {"STEP": note, "DRIVER": note, "WORDS": str(record), "SLURM_JOB_ACCOUNT": "llm", "VERSION": "v0.7.0"}
    ran = Pretended(tmp_path, job, profile, **told)
    assert ran.process.wait(timeout=300) == 0, ran.said()
    found = record.read_bytes().decode().split("\0")[:-1]
    assert tail_of(found, NASTY) == ["-m", "step", *NASTY]
    assert not [*tmp_path.rglob("it-ran")]
