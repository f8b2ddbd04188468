"""Against the real NeMo-Run, without a service: what it would send for our jobs, its script for Slurm beside ours."""

import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest
from jobs import PLANTED, job_of, profile_of
from renderings import GOLDEN, PROFILES, REQUEST, rendered

from nemotron_cluster.profiles import Slurm
from nemotron_cluster.slurm.script import render
from nemotron_shared.machine.environments import environment_of

pytestmark = pytest.mark.nemo_run
SLURM = {
    "account": "a",
    "partition": "batch",
    "qos": "high",
    "nodes": 2,
    "ntasks_per_node": 8,
    "gpus_per_node": 8,
    "time": "02:00:00",
    "mem": "0",
    "exclusive": True,
}
OURS = {"job-name", "output", "chdir", "signal", "requeue"}
"""Directives that are meant to differ: names and places, and what has a job save and queue itself again."""
SCRIPT = """
import os, sys
home, settings = sys.argv[1], eval(sys.argv[2])
os.environ["NEMORUN_HOME"] = home
import nemo_run as run
from nemo_run.core.execution.slurm import SlurmExecutor
from nemo_run.core.tunnel.client import LocalTunnel
executor = SlurmExecutor(
    **settings, launcher="torchrun", tunnel=LocalTunnel(job_dir=home + "/experiments"), packager=run.Packager()
)
with run.Experiment("e", executor=executor) as experiment:
    experiment.add(run.Script(path="step.py", entrypoint="python"), executor=executor, name="sft")
    experiment.dryrun(log=True)
"""


@pytest.mark.parametrize("executor", [name for name in PROFILES if name not in ("local", "skypilot")])
def test_nemo_run_sends_what_was_written_down(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "DGX_CLIENT_SECRET"):
        monkeypatch.setenv(name, PLANTED)
    text = rendered(executor)
    assert REQUEST in text
    assert text == (GOLDEN / f"{executor}.txt").read_text()
    assert PLANTED not in text


def test_our_script_for_slurm_asks_for_what_nemo_run_s_asks(tmp_path: Path) -> None:
    environment = environment_of("nemo_run")
    assert environment is not None and environment.programs is not None
    theirs = subprocess.run(
        [str(environment.programs / "python"), "-c", SCRIPT, str(tmp_path), repr(SLURM)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "1000"},
    ).stdout
    profile = profile_of("slurm", **SLURM)
    assert isinstance(profile, Slurm)
    job = job_of(start="torchrun", nodes=2, processes_per_node=8, gpus_per_node=8)
    ours = render(job, profile, PurePosixPath("/jobs/x"))
    asked, said = directives(ours), directives(theirs)
    assert len(said) >= 10
    assert {key: value for key, value in asked.items() if key not in OURS} == {
        key: value for key, value in said.items() if key not in OURS
    }
    # Where ours asks by variables of the script, their values.
    values = {"$nodes": "2", "$processes": "8"}
    started, options = torchrun(ours), torchrun(theirs)
    assert {values.get(started[name], started[name]) for name in ("nnodes", "nproc-per-node")} == {"2", "8"}
    assert (options["nnodes"], options["nproc-per-node"]) == ("2", "8")
    assert started["rdzv-backend"] == options["rdzv-backend"] == "c10d"
    # Theirs has the same port for all jobs, and tells torchrun which node it is; c10d finds that out.
    assert started["rdzv-endpoint"] == "$head:$port" and options["rdzv-endpoint"] == "$head_node_ip:29500"
    assert {"nodes=2", "processes=8"} <= {line.split(" ")[0] for line in ours.splitlines()}


def directives(script: str) -> dict[str, str]:
    """The #SBATCH lines, by their names."""
    return dict(re.findall(r"^\s*#SBATCH --([a-z-]+)(?:=(\S+))?", script, re.MULTILINE))


def torchrun(script: str) -> dict[str, str]:
    """The options of the line that starts torchrun."""
    joined = script.replace("\\\n", " ")
    line = next(line for line in joined.splitlines() if "torchrun" in line and "--nnodes" in line)
    words = shlex.split(line.replace("=", " "))
    return {word[2:]: following for word, following in pairwise(words) if word.startswith("--")}
