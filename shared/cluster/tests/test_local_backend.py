"""Jobs on this machine: they outlive what started them, say how they ended, and save when they are cancelled."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import PLANTED, ended, folder_of, job_of, profile_of, said, submitted, wait_for

from nemotron_cluster.backends import backend_of
from nemotron_cluster.job import EXIT_CODE, SCRIPT
from nemotron_cluster.secrets import write_secrets
from nemotron_shared.system.errors import UserError


@pytest.mark.parametrize(("config", "state", "code"), [("exit 0", "done", 0), ("exit 5", "failed", 5)])
def test_a_job_says_how_it_ended(tmp_path: Path, config: str, state: str, code: int) -> None:
    backend = backend_of(profile_of("local"))
    record = submitted(backend, job_of(environment={"PLACE": "it's here"}), folder_of(tmp_path, config))
    end = ended(backend, record)
    assert (end.state, end.exit_code, end.source) == (state, code, EXIT_CODE)
    text = said(backend, record)
    assert f"step: {config} ['a b'] it's here no token rank - of -" in text
    assert backend.log(record, len(text) - 3) == text[-3:].encode()


def test_torchrun_starts_the_processes(tmp_path: Path) -> None:
    backend = backend_of(profile_of("local"))
    record = submitted(backend, job_of(start="torchrun", processes_per_node=2), folder_of(tmp_path))
    assert ended(backend, record).state == "done", said(backend, record)
    assert {f"rank {rank} of 2" in said(backend, record) for rank in (0, 1)} == {True}


@pytest.mark.parametrize("start", ["single", "torchrun"])
def test_a_cancelled_job_saves(tmp_path: Path, start: str) -> None:
    backend = backend_of(profile_of("local"))
    record = submitted(backend, job_of(start=start), folder_of(tmp_path, "sleep"))
    wait_for(lambda: "step:" in said(backend, record))
    assert backend.state(record).state == "running"
    backend.cancel(record)
    end = ended(backend, record)
    assert (end.state, end.exit_code) == ("cancelled", 130), said(backend, record)
    assert "saved" in said(backend, record)
    backend.cancel(record)  # is over: nothing happens


def test_a_job_that_was_killed_leaves_no_code_and_is_not_taken_for_running(tmp_path: Path) -> None:
    backend = backend_of(profile_of("local"))
    record = submitted(backend, job_of(), folder_of(tmp_path, "sleep"))
    wait_for(lambda: "step:" in said(backend, record))
    os.killpg(int((record.id or "").partition("-")[0]), signal.SIGKILL)
    end = ended(backend, record)
    assert (end.state, end.exit_code) == ("failed", None)
    # The process id of another one that lives, this one, with another start.
    assert backend.state(dataclasses.replace(record, id=f"{os.getpid()}-1")).state == "failed"


def test_a_job_outlives_the_session_that_started_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "sleep")
    program = (
        "import sys; from pathlib import Path; from jobs import *; from nemotron_cluster.backends import backend_of; "
        "print(submitted(backend_of(profile_of('local')), job_of(), Path(sys.argv[1])).id, flush=True)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", program, str(folder)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    identity = (parent.communicate()[0]).strip()
    for number in (signal.SIGHUP, signal.SIGTERM):  # the terminal closes: its whole group is told
        with pytest.raises(ProcessLookupError):
            os.killpg(parent.pid, number)
    backend = backend_of(profile_of("local"))
    record = dataclasses.replace(submitted(backend, job_of(), folder_of(tmp_path)), id=identity, folder=str(folder))
    wait_for(lambda: "step:" in said(backend, record))
    assert backend.state(record).state == "running"
    backend.cancel(record)
    assert ended(backend, record).state == "cancelled"


def test_a_secret_is_in_the_job_and_in_no_file_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path)
    write_secrets(folder, ["HF_TOKEN"], {"HF_TOKEN": PLANTED})
    monkeypatch.delenv("HF_TOKEN", raising=False)
    backend = backend_of(profile_of("local", setup_lines=["set -x"]))
    record = submitted(backend, job_of(secrets=("HF_TOKEN",)), folder)
    assert ended(backend, record).state == "done"
    assert " token rank" in said(backend, record) and "no token" not in said(backend, record)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert not [path for path in files if PLANTED in path.read_text(errors="replace")]
    assert PLANTED not in (folder / SCRIPT).read_text()


def test_lines_of_setup_come_first_and_a_failure_of_theirs_is_the_job_s(tmp_path: Path) -> None:
    backend = backend_of(profile_of("local", setup_lines=["echo before", "false"]))
    record = submitted(backend, job_of(), folder_of(tmp_path))
    assert ended(backend, record).exit_code == 1
    assert said(backend, record) == "before\n"


def test_force_counts_at_the_first_start_only(tmp_path: Path) -> None:
    backend = backend_of(profile_of("local"))
    record = submitted(backend, job_of(force=True), folder := folder_of(tmp_path))
    ended(backend, record)
    again = subprocess.run(["bash", folder / SCRIPT], capture_output=True, text=True, check=True)
    assert "['a b', '--force']" in said(backend, record)
    assert "['a b'] " in again.stdout


def test_what_only_slurm_can_is_refused(tmp_path: Path) -> None:
    backend = backend_of(profile_of("local"))
    for keys, message in (
        ({"after": ("1",)}, "cannot hold a job back"),
        ({"nodes": 2}, "has one node, and the job asks for 2"),
        ({"start": "srun"}, "starts its processes with srun"),
    ):
        with pytest.raises(UserError, match=message):
            backend.submit(job_of(**keys), folder_of(tmp_path))
