"""Handing scripts to Slurm: what it says beforehand, what it refuses, and that no job gets lost on the way."""

import os
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from jobs import write_programs
from slurm_support import Cluster

from nemotron_cluster.slurm import scheduler
from nemotron_cluster.transport import Answer, Here, NoAnswer
from nemotron_shared.system.errors import UserError

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --partition=PARTITION\nsleep 100\n"


class Head(Here):
    """The test cluster's head as a machine that takes jobs."""

    def __init__(self, slurm: Cluster, silent: bool = False) -> None:
        super().__init__("the test cluster")
        object.__setattr__(self, "slurm", slurm)
        object.__setattr__(self, "silent", silent)

    def run(self, command: Sequence[str], patience: float = 600) -> Answer:
        answer = self.slurm.run("head", *command)
        if "sbatch" in command[2] and self.silent:
            raise NoAnswer("sbatch did not answer")
        return answer


def test_slurm_is_asked_when_a_job_would_start(slurm: Cluster) -> None:
    said = scheduler.test_only(Head(slurm), SCRIPT.replace("PARTITION", "batch"))
    assert said.startswith("Job ")
    assert said.endswith("on nodes n[1-2] in partition batch")
    assert not slurm.checked("head", "squeue", "-h")


def test_what_slurm_refuses_is_told_in_its_words_and_ours(slurm: Cluster, tmp_path: Path) -> None:
    script = slurm.shared / "refused.sh"
    script.write_text(SCRIPT.replace("PARTITION", "bach"))
    for ask in (
        lambda: scheduler.test_only(Head(slurm), script.read_text()),
        lambda: scheduler.submit(Head(slurm), PurePosixPath(script)),
    ):
        with pytest.raises(UserError) as raised:
            ask()
        assert raised.value.message == ("Slurm refuses the job on the test cluster: Invalid partition name specified")
        assert raised.value.remedy


@pytest.mark.parametrize("silent", [False, True], ids=["answered", "not answered"])
def test_the_id_of_a_job_is_found(slurm: Cluster, silent: bool) -> None:
    script = slurm.shared / f"a job {silent}.sh"
    script.write_text(SCRIPT.replace("PARTITION", "batch"))
    number = scheduler.submit(Head(slurm, silent), PurePosixPath(script))
    assert f"Command={script}" in slurm.checked("head", "scontrol", "show", "job", number)
    slurm.clear()


def test_a_job_that_nobody_knows_of_is_not_invented(slurm: Cluster) -> None:
    with pytest.raises(NoAnswer):
        scheduler.submit(Head(slurm, silent=True), PurePosixPath(slurm.shared / "there is no such script.sh"))


def test_ctrl_c_does_not_reach_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_programs(tmp_path, {"sbatch": "#!/bin/bash\nkill -INT $$\nsleep 0.2\necho '77;cluster'\n"})
    reset = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
    assert subprocess.run([tmp_path / "sbatch"], check=False, preexec_fn=reset).returncode < 0
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert scheduler.submit(Here(), PurePosixPath("job.sh")) == "77"


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    ways = (lambda: scheduler.test_only(Here(), SCRIPT), lambda: scheduler.submit(Here(), PurePosixPath("job.sh")))
    for ask in ways:
        with pytest.raises(scheduler.NoScheduler, match="sbatch not found here"):
            ask()
    fatal = "sbatch: fatal: Could not establish a configuration source"
    write_programs(tmp_path, {"sbatch": f"#!/bin/sh\necho '{fatal}' >&2\nexit 1\n"})
    for ask in ways:
        with pytest.raises(scheduler.NoScheduler, match=r"^no Slurm answers here: fatal: Could not establish a conf"):
            ask()
